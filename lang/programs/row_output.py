"""`output="rows.jsonl"`: each finished row in a file, and a rerun that runs only what is missing.

A line is a JSON object: `index`, `key`, `arguments`, `variables`, `text`, `error`, `usage`, `seed`
(and `unsaved`: the names of variables that JSON cannot hold). `key` is a hash of the arguments, the
program's own source, the options that decide the result (with a seed also the row's index, because
its derived seed depends on that), the backend's model, and how many equal rows came before.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import Usage
from ramet.runtime.protocol.checks import path_text

from ..errors import InvalidRequestError, ProgramError, RametError, UndefinedVariableError
from ..execution.executor import Run
from ..states.state import ProgramState
from ..states.value import Value

if TYPE_CHECKING:
    from .batch import Batch

_log = logging.getLogger("ramet")


class RowOutput:
    """The file of a batch: opened, locked and read at the start, and appended to row by row.

    Raises:
        InvalidRequestError: another batch writes to the file, or a line of it is no row.
        TypeError: an argument that JSON cannot hold, and that a rerun could not compare.
    """

    def __init__(self, path: str, batch: Batch) -> None:
        self._path = path
        self._batch = batch
        self._lock = threading.Lock()
        self._common = _common_key(batch)
        self._num_equal: collections.Counter[str] = collections.Counter()
        self._keys: dict[int, tuple[str, dict[str, Any]]] = {}
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(self._file, path)
            self._stored = self._read()
        except BaseException:
            os.close(self._file)
            raise

    @classmethod
    def of(cls, path: Any, batch: Batch, rows: object) -> RowOutput | None:
        """Return the output of a batch; None where none is wanted.

        Rows of a list are checked before anything runs, and those of an iterator when they come.
        """
        if path is None:
            return None
        if isinstance(rows, (list, tuple)):
            for index, row in enumerate(rows):
                _check_row(batch, row, index)
        return cls(path_text("output", path), batch)

    def stored(self, index: int, arguments: inspect.BoundArguments) -> ProgramState | None:
        """Return the state of a row that an earlier run has finished well, else None."""
        given = dict(arguments.arguments)
        _check(given, index)
        key = self._key(index, given)
        self._keys[index] = key, given
        line = self._stored.get(key)
        return None if line is None else stored_state(self._batch, index, line)

    def write(self, index: int, state: ProgramState) -> None:
        """Append a row that has finished; one that was in the file already stays as it is."""
        if index not in self._keys or isinstance(state, StoredState):
            return  # a row that could not be bound has no key
        key, arguments = self._keys.pop(index)
        line = {"index": index, "key": key, "arguments": arguments, **_outcome(state)}
        data = (json.dumps(line, ensure_ascii=False, allow_nan=True) + "\n").encode(
            errors="surrogatepass"
        )
        with self._lock:
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Close the file, which ends its lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _key(self, index: int, arguments: dict[str, Any]) -> str:
        position = index if self._batch.is_seeded else None
        body = json.dumps([self._common, arguments, position], sort_keys=True)
        with self._lock:
            equal = self._num_equal[body]
            self._num_equal[body] += 1
        return sha256(f"{body}{equal}".encode(errors="surrogatepass")).hexdigest()

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the rows that ended well by their keys; cut off a line that a crash left."""
        with open(self._path, "rb") as file:
            data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            _log.warning("%s: cutting off its last line, which is not complete", self._path)
            os.ftruncate(self._file, whole)
        stored: dict[str, dict[str, Any]] = {}
        for number, raw in enumerate(data[:whole].splitlines(), 1):
            try:
                line = json.loads(raw.decode(errors="surrogatepass"))
                key, error = line["key"], line["error"]
                line["variables"], line["text"], line["usage"], line["seed"]
            except (ValueError, TypeError, KeyError):
                raise InvalidRequestError(
                    f"{self._path} line {number} is no row of a batch: name another output file"
                ) from None
            if error is None:
                stored[key] = line
        return stored


class StoredState(ProgramState):
    """The state of a row that an earlier run has finished: it holds what the file has."""

    _line: dict[str, Any]

    def text(self) -> str:
        """Return the whole text as the model saw it."""
        if self._line["text"] is None:
            raise ProgramError("the file of the earlier run has no text of this row")
        return str(self._line["text"])

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """Give the text of a variable, or the whole text, in one piece."""
        return super().text_iter(var) if var is not None else iter((self.text(),))

    async def text_async_iter(
        self, var: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Give the text of a variable, or the whole text, in one piece."""
        if var is None:
            yield (self.text(), {"variable": None}) if return_meta_data else self.text()
            return
        async for piece in super().text_async_iter(var, return_meta_data):
            yield piece

    def messages(self) -> list[dict[str, Any]]:
        """Raise: the file has the text of a row, not its turns."""
        raise ProgramError("this row was run earlier, and its file has no messages: use text()")

    @property
    def num_tokens(self) -> int:
        """Raise: the file has no tokens."""
        raise ProgramError("this row was run earlier, and its file has no tokens: use text()")

    @property
    def ret_value(self) -> Any:
        """Raise: the file has the variables of a row, not what the function returned."""
        raise ProgramError(
            "this row was run earlier, and its file has no returned value: set it as a variable, "
            "s['result'] = …, and read that"
        )

    def __str__(self) -> str:
        return str(self._line["text"] or "")

    @property
    def usage(self) -> Usage:
        """The tokens that the earlier run took."""
        return Usage(**self._line["usage"])

    @property
    def seed(self) -> int:
        """The seed of the earlier run."""
        return int(self._line["seed"])


def stored_state(batch: Batch, index: int, line: dict[str, Any]) -> ProgramState:
    """Return a state that answers reads from a line of the file."""
    run: Run = batch.program.new_run(batch.options, row=index, deadline=None)
    state = StoredState(run, run.root)
    state._line = line
    for name, value in line["variables"].items():
        state._bind(name, Value.known(name, value))
    for name in line.get("unsaved", ()):
        missing = Value(name)
        missing.fail(
            UndefinedVariableError(
                f"row {index}: variable {name!r} held what JSON cannot, so that the file of the "
                "earlier run has no value of it"
            )
        )
        state._bind(name, missing)
    run.end_body()
    return state


def _outcome(state: ProgramState) -> dict[str, Any]:
    """Return what a line says of a state, which has ended."""
    error = state._run.body_error
    variables: dict[str, Any] = {}
    unsaved: list[str] = []
    for name, value in state._variables.items():
        if value.done and value.error is None and _is_json(value.value):
            variables[name] = value.value
        else:
            unsaved.append(name)
    result: dict[str, Any] = {"variables": variables}
    if unsaved:
        result["unsaved"] = unsaved
    result["text"] = _text(state) if error is None else None
    result["error"] = None if error is None else f"{type(error).__name__}: {error}"
    streams = state._stream.all_streams()
    usage = sum((stream.usage for stream in streams), Usage())
    return {**result, "usage": dataclasses.asdict(usage), "seed": state.seed}


def _text(state: ProgramState) -> str | None:
    try:
        return state.text()
    except RametError:
        return None  # a failure that the program has handled


def _check(arguments: dict[str, Any], index: int) -> None:
    for name, value in arguments.items():
        if not _is_json(value):
            raise TypeError(
                f"row {index}: argument {name!r} is {value!r:.80}, which JSON cannot hold, so that "
                "output= could not tell whether the row was run: pass text or finite numbers"
            )


def _check_row(batch: Batch, row: object, index: int) -> None:
    """Raise where a row's arguments are no JSON; a row that does not fit is its own error later."""
    try:
        arguments = batch.program.bind_row(row)
    except TypeError:
        return
    _check(dict(arguments.arguments), index)


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == _as_lists(value))
    except (TypeError, ValueError, RecursionError):
        return False


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_lists(item) for item in value]
    return value


def _common_key(batch: Batch) -> list[Any]:
    program, options = batch.program, batch.options
    try:
        source = inspect.getsource(program.func)
    except (OSError, TypeError):  # typed at a prompt, or made by exec
        code = program.func.__code__
        source = f"{code.co_code.hex()} {code.co_names} {code.co_consts!r}"
    backend = options.backend
    model = None if backend is None else backend.info().get("model")
    seed = options.seed if batch.is_seeded else None
    return [program.name, source, repr(sorted(options.sampling.items())), seed, model]


def _lock(file: int, path: str) -> None:
    """Take the file for this batch alone, until it is closed.

    Raises:
        InvalidRequestError: another batch has it.
    """
    import fcntl  # not on Windows, where nothing else of Ramet needs it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InvalidRequestError(
            f"another batch is writing to {path}: wait until it ends, or name another file"
        ) from None
