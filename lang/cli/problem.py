"""An exception in words for the person at the terminal, without a traceback."""

from __future__ import annotations

import traceback
from pathlib import Path


def describe(error: BaseException, file: Path) -> str:
    """Return kind, message and notes of `error`, and the last line of `file` that it passed."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place, line = _place(error, file)
    notes = [f"  {note}" for note in getattr(error, "__notes__", ()) if not note.endswith(line)]
    cause = error.__cause__
    if cause is not None and str(cause) not in message:
        notes.append(f"  because of {type(cause).__name__}: {cause}")
    return "\n".join([message, *place, *notes])


def _place(error: BaseException, file: Path) -> tuple[list[str], str]:
    """Return the last line of `file` that `error` passed, and how a program's note ends there."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    if not frames:
        return [], "nowhere"
    last = frames[-1]
    place = f"  at {file}:{last.lineno} in {last.name}: {(last.line or '').strip()}"
    return [place], f"{file.resolve()} line {last.lineno}"
