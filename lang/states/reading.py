"""Reading variables of a state: what is said where there is none, and of what kind they are."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError, UndefinedVariableError
from ..execution import context
from . import outcome

if TYPE_CHECKING:
    from .readable import ReadableState
    from .value import Value


def find(state: ReadableState, name: str) -> Value:
    """Return a variable, waiting until a body in another thread has bound it.

    Raises:
        UndefinedVariableError: there is none.
    """
    run, variables = state._run, state._variables
    if name not in variables and outcome.body_is_elsewhere(run):
        run.wait(lambda: name in variables or run.body_ended)
    if name in variables:
        return variables[name]
    stopped = state._stream.error or run.body_error or run.cancelled
    if stopped is not None:
        state._stream.error_seen = True
        raise stopped.with_traceback(None)
    raise undefined(state, name)


def undefined(state: ReadableState, name: object) -> UndefinedVariableError:
    """Return the error for a name that is no variable; the nearest ones are named."""
    known = difflib.get_close_matches(str(name), state._variables, n=3)
    known = known or list(state._variables)[:8]
    hint = f"; did you mean {' or '.join(map(repr, known))}?" if known else "; there are none yet"
    line = context.program_line(state._run.settings.file)
    return UndefinedVariableError(
        f"{state._run.program} line {line}: the state has no variable {name!r}{hint}"
    )


def check_type(type: object) -> None:
    """Refuse what `get` cannot check for.

    Raises:
        TypeError: another type than `str`.
    """
    if type is not None and type is not str:
        raise TypeError(f"the type of a variable can only be str in this version, not {type!r}")


def of_type(name: str, value: Any, type: object) -> Any:
    """Return a variable's value, checked against what `get` was given.

    Raises:
        TypeError: the value is not of that type.
    """
    if type is str and not isinstance(value, str):
        raise TypeError(f"variable {name!r} is {value.__class__.__name__}, not str: {value!r:.80}")
    return value


def raw(value: Value) -> Any:
    """Return the text that was generated for a variable, which is there.

    Raises:
        InvalidRequestError: the program set it, or a join made it: no text was generated.
    """
    if value.stream is None:
        raise InvalidRequestError(
            f"variable {value.name!r} was not generated: read its value with s[{value.name!r}]"
        )
    return value.result()
