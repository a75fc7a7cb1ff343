"""Chat turns: `system`, `user`, `assistant`, and their two ends apart."""

from __future__ import annotations

from ramet.runtime.protocol import ROLES, InvalidRequestError, unknown_name

from .graph import Expression, RoleBegin, RoleEnd, Sequence, as_nodes


def role_block(role: str, expr: Expression | str | None = None) -> Sequence:
    """Return `expr` as a chat turn of `role`; None = a turn without text."""
    inner = () if expr is None else as_nodes(expr)
    return Sequence((role_begin(role), *inner, RoleEnd(role)))


def role_begin(role: str) -> RoleBegin:
    """Return the opening of a chat turn of `role`.

    Raises:
        InvalidRequestError: there is no such role; the nearest one is named.
    """
    if role not in ROLES:
        raise InvalidRequestError(unknown_name(role, ROLES, "role"))
    return RoleBegin(role)


def system(expr: Expression | str | None = None) -> Sequence:
    """Return a system message.

    Args:
        expr: its text, an expression or a list of them; None (the default) = an empty message.

    Raises:
        TypeError: `expr` is something else.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.system("Answer in one word.")
        >>> talk(backend=ramet.Fake()).messages()
        [{'role': 'system', 'content': 'Answer in one word.'}]
    """
    return role_block("system", expr)


def user(expr: Expression | str | None = None) -> Sequence:
    """Return a user's turn; `expr` and errors as for `system`.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.user("Hello")
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'user', 'content': 'Hello'}]
    """
    return role_block("user", expr)


def assistant(expr: Expression | str | None = None) -> Sequence:
    """Return an assistant's turn; `expr` and errors as for `system`.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.assistant(ramet.gen("x"))
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'assistant', 'content': 'Hi'}]
    """
    return role_block("assistant", expr)


def system_begin() -> RoleBegin:
    """Open a system message; `system_end()` closes it.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.system_begin() + "Be brief." + ramet.system_end()
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'system', 'content': 'Be brief.'}]
    """
    return role_begin("system")


def system_end() -> RoleEnd:
    """Close a system message.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.system_begin() + "Be brief." + ramet.system_end()
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'system', 'content': 'Be brief.'}]
    """
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """Open a user's turn; `user_end()` closes it.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.user_begin() + "Hello" + ramet.user_end()
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'user', 'content': 'Hello'}]
    """
    return role_begin("user")


def user_end() -> RoleEnd:
    """Close a user's turn.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.user_begin() + "Hello" + ramet.user_end()
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'user', 'content': 'Hello'}]
    """
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """Open an assistant's turn; `assistant_end()` closes it.

    What comes next decides what the template puts there: a gen, a select or a read gets the
    template's generation prompt, literal text that of a past turn.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.assistant_begin() + ramet.gen("x") + ramet.assistant_end()
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'assistant', 'content': 'Hi'}]
    """
    return role_begin("assistant")


def assistant_end() -> RoleEnd:
    """Close an assistant's turn.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.assistant_begin() + ramet.gen("x") + ramet.assistant_end()
        >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
        [{'role': 'assistant', 'content': 'Hi'}]
    """
    return RoleEnd("assistant")
