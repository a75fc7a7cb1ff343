"""Entry point of the command: parses, dispatches, turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ramet.runtime.protocol import InvalidRequestError, ModelError, RametError

from ..backends.base import Backend
from .info import show_info
from .load import UsageError
from .parser import build_parser
from .run import run_program

OK, FAILED, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None, *, backend: Backend | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 the program failed, 2 wrong usage.

    `argv` is without the command's own name, None = the process's arguments. `backend` stands
    in for the engine that `--model` would start, in tests and other programs.
    """
    parser = build_parser()
    try:
        options = parser.parse_args(argv)
    except SystemExit as end:  # argparse has printed the help or what is wrong
        return end.code if isinstance(end.code, int) else USAGE
    try:
        if options.command == "run":
            return run_program(options, backend)
        if options.command == "info":
            return show_info(options, backend)
        return _show_version()
    except UsageError as error:
        return _complain(error, USAGE)
    except (ModelError, InvalidRequestError) as error:  # a wrong --model or a value out of range
        return _complain(error, USAGE)
    except RametError as error:
        return _complain(error, FAILED)
    except UnicodeEncodeError as error:  # standard output has an encoding of few characters
        return _complain(f"cannot print: {error}; set PYTHONIOENCODING=utf-8", FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", FAILED)
    except BrokenPipeError:  # the reader of our output went away, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        return OK


def _show_version() -> int:
    from .. import __version__

    print(f"ramet {__version__} (Python {sys.version.split()[0]})")
    return OK


def _complain(problem: object, code: int) -> int:
    print(f"ramet: {problem}", file=sys.stderr)
    return code
