"""`ramet run`: a program of a file, on an engine, and what it generated."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ramet.runtime.protocol import ProgramError, normalize_options, params_of

from ..backends.base import Backend
from ..backends.local import Engine
from ..execution.seeds import check_seed
from ..programs.program import Program
from ..states.state import ProgramState
from .load import UsageError, load_program, read_arguments
from .problem import describe

OPTIONS = ("max_tokens", "temperature", "seed")


def run_program(options: Namespace, backend: Backend | None) -> int:
    """Run the program and print it; return 0, or 1 with a message if it failed."""
    program = load_program(options.program)
    arguments = read_arguments(options.arg, program)
    chosen = _run_options(options, program)
    with _backend(options.model, backend) as engine:
        try:
            state = program.run(**arguments, **chosen, **({"backend": engine} if engine else {}))
            shown = _shown(state, options.show)
        except Exception as error:  # noqa: BLE001 - the person's program may raise anything
            path = Path(options.program.rpartition(":")[0])
            print(f"ramet: {options.program} failed: {describe(error, path)}", file=sys.stderr)
            return 1
    print(shown, flush=True)
    return 0


def _run_options(options: Namespace, program: Program) -> dict[str, object]:
    """Return the run options that were given, checked before anything starts."""
    chosen = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    sampling = {name: value for name, value in chosen.items() if name != "seed"}
    params_of(normalize_options(sampling))
    if "seed" in chosen:
        check_seed(chosen["seed"])
    for name in chosen:
        if name in program.parameters.names:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{name} is the program's own argument: leave {flag} out, or give --arg {name}=…"
            )
    return chosen


@contextmanager
def _backend(model: str | None, given: Backend | None) -> Iterator[Backend | None]:
    """Give the engine to name in the run: None leaves the choice to the program's file."""
    if given is not None or model is None:
        yield given
        return
    with Engine(model) as engine:
        yield engine


def _shown(state: ProgramState, form: str) -> str:
    if form == "text":
        return state.text()
    if form == "transcript":
        return f"{state}\n\n{state.usage}"
    body = {
        "variables": {name: state[name] for name in state.variables},
        "messages": _messages(state),
        "text": state.text(),
        "usage": asdict(state.usage),
        "seed": state.seed,
    }
    return json.dumps(body, indent=2, ensure_ascii=False, default=list)


def _messages(state: ProgramState) -> list[dict[str, str]] | None:
    """Return the chat turns; None for a program with text outside of all turns."""
    try:
        return state.messages()
    except ProgramError:
        return None
