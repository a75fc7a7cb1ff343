"""PrefixStore: named prefixes in a folder, each with its KV, one file per name.

A file is a fixed start (magic, sizes, checksum), a JSON header, the token ids and, at a whole
page, the KV rows, which are mapped into memory and never copied as a whole.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from ..protocol import EngineError, InvalidRequestError
from ..step import Int32Array

_log = logging.getLogger("ramet.engine")

UInt8Array = npt.NDArray[np.uint8]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SUFFIX = ".prefix"
_LEFTOVER = ".saving-"
_LOCK_SECONDS = 30.0
_MAGIC = b"ramet-kv"
_START = struct.Struct("<8sIII")  # magic, version, bytes of the header, checksum of the header
_VERSION = 1
_PAGE = 4096
_MAX_HEADER = 1 << 16
_CHECK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """Whose KV it is. Where one of these differs the KV is another, in its last bits at least."""

    model_hash: str
    dtype: str
    layout: str
    arithmetic: str = ""


_KEY_NAMES = tuple(field.name for field in fields(PrefixKey))


@dataclass(frozen=True, slots=True)
class SavedPrefix:
    """A prefix from the disk: one row of KV bytes per token id, mapped and read only."""

    name: str
    ids: Int32Array
    rows: UInt8Array


class _DamagedFileError(ValueError):
    """The file is not what was written."""


def check_prefix_name(name: object) -> str:
    """Return `name` if a prefix may be called so.

    Raises:
        InvalidRequestError: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"a prefix is named with 1 to 64 letters, digits, '.', '_' and '-', not {name!r}"
        )
    return name


class PrefixStore:
    """Saves and loads the prefixes of one model in `folder`; others may lie beside them."""

    def __init__(self, folder: Path, key: PrefixKey) -> None:
        self.folder = folder
        self._key = key

    def save(self, name: str, ids: Int32Array, rows: UInt8Array) -> Path:
        """Write a prefix, replacing the one of the same name, whole or not at all.

        Raises:
            InvalidRequestError: the name is none.
            EngineError: the file cannot be written.
        """
        target = self.folder / f"{check_prefix_name(name)}{_SUFFIX}"
        lock = FileLock(self.folder / ".lock")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with lock.acquire(timeout=_LOCK_SECONDS):
                for leftover in self.folder.glob(f"{_LEFTOVER}*"):  # of processes that were killed
                    leftover.unlink(missing_ok=True)
                self._write(target, ids, rows)
        except Timeout:
            raise EngineError(
                f"the prefix {name!r} could not be saved: another process holds "
                f"{self.folder / '.lock'} for more than {_LOCK_SECONDS:g} s"
            ) from None
        except OSError as error:
            raise EngineError(
                f"the prefix {name!r} could not be saved in {self.folder}: {error}"
            ) from error
        return target

    def load(self) -> Iterator[SavedPrefix]:
        """Yield this model's prefixes, by name.

        One of another model, dtype, layout or processor is skipped, and one that is damaged or
        cannot be read is left out; a log line says which.
        """
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            try:
                saved = self._read(path)
            except (ValueError, OSError) as error:  # JSON that is none is a ValueError, too
                _log.warning("the saved prefix %s is left out: %s", path, error)
                continue
            if saved is not None:
                yield saved

    def _write(self, target: Path, ids: Int32Array, rows: UInt8Array) -> None:
        id_bytes = np.ascontiguousarray(ids, dtype="<i4").tobytes()
        row_bytes = np.ascontiguousarray(rows).data
        header = json.dumps(
            {
                **asdict(self._key),
                "num_tokens": len(ids),
                "row_bytes": rows.shape[1],
                "ids_crc32": zlib.crc32(id_bytes),
                "rows_crc32": zlib.crc32(row_bytes),
            }
        ).encode()
        start = _START.pack(_MAGIC, _VERSION, len(header), zlib.crc32(header))
        head = start + header + id_bytes
        handle, temporary = tempfile.mkstemp(prefix=_LEFTOVER, dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(head + bytes(-len(head) % _PAGE))
                file.write(row_bytes)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _read(self, path: Path) -> SavedPrefix | None:
        """Return the prefix in `path`, None if it is another model's."""
        with path.open("rb") as file:
            header, end_of_header = _read_header(file.read(_START.size + _MAX_HEADER))
            key = PrefixKey(*(str(header.get(name)) for name in _KEY_NAMES))
            if key != self._key:
                _log.info("the saved prefix %s is skipped: %s", path, _difference(key, self._key))
                return None
            num_tokens, row_bytes = _size(header, "num_tokens"), _size(header, "row_bytes")
            begin = end_of_header + 4 * num_tokens
            begin += -begin % _PAGE
            wanted, size = begin + num_tokens * row_bytes, os.fstat(file.fileno()).st_size
            if size != wanted:
                raise _DamagedFileError(f"it has {size} bytes instead of {wanted}")
            file.seek(end_of_header)
            id_bytes = file.read(4 * num_tokens)
        rows = np.memmap(path, np.uint8, "r", offset=begin, shape=(num_tokens, row_bytes))
        _check(id_bytes, header.get("ids_crc32"), "token ids")
        _check(rows.data, header.get("rows_crc32"), "KV")
        ids = np.frombuffer(id_bytes, dtype="<i4").astype(np.int32)
        return SavedPrefix(path.name.removesuffix(_SUFFIX), ids, rows)


def _read_header(data: bytes) -> tuple[dict[str, object], int]:
    """Return the header at the start of `data` and where it ends."""
    if len(data) < _START.size:
        raise _DamagedFileError("it is cut off")
    magic, version, length, checksum = _START.unpack_from(data)
    if magic != _MAGIC:
        raise _DamagedFileError("it is no saved prefix")
    if version != _VERSION:
        raise _DamagedFileError(f"it has format {version}, and this Ramet reads {_VERSION}")
    body = data[_START.size : _START.size + length]
    _check(body, checksum, "header")
    header = json.loads(body)
    if not isinstance(header, dict):
        raise _DamagedFileError("its header is no JSON object")
    return header, _START.size + length


def _size(header: dict[str, object], name: str) -> int:
    value = header.get(name)
    if not isinstance(value, int) or value < 1:
        raise _DamagedFileError(f"its header says {name}={value!r}")
    return value


def _check(data: bytes | memoryview, expected: object, what: str) -> None:
    checksum = 0
    flat = memoryview(data).cast("B")
    for start in range(0, len(flat), _CHECK_BYTES):
        checksum = zlib.crc32(flat[start : start + _CHECK_BYTES], checksum)
    if checksum != expected:
        raise _DamagedFileError(f"the checksum of its {what} is wrong")


def _difference(found: PrefixKey, own: PrefixKey) -> str:
    names = [name for name in _KEY_NAMES if getattr(found, name) != getattr(own, name)]
    return ", ".join(f"its {n} is {getattr(found, n)}, not {getattr(own, n)}" for n in names)
