"""What a program's function takes, and which of the keywords at a call are options of the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ramet.runtime.protocol import unknown_name

from .options import OPTIONS

Bound = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments that were preset: by position and by keyword."""


class Parameters:
    """The parameters of a function after the state.

    Attributes:
        names: those that can be given by keyword.
    """

    def __init__(self, program: str, func: Callable[..., object]) -> None:
        self._program = program
        parameters = list(inspect.signature(func).parameters.values())
        is_named = parameters[0].kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.signature = inspect.Signature(parameters[1:] if is_named else parameters)
        keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        own = self.signature.parameters.values()
        self.names = tuple(p.name for p in own if p.kind in keyword_kinds)
        self._takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own)

    def split(
        self, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[inspect.BoundArguments, dict[str, Any]]:
        """Return the function's arguments and the run options; what is given at the call wins.

        Raises:
            TypeError: an unknown keyword (the nearest known one is named), a missing argument.
        """
        bound_args, preset = bound
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in {**preset, **kwargs}.items():
            if name in self.names:
                own[name] = value
            elif self.is_option(name):
                options[name] = value
            else:
                self.check_name(name)
                own[name] = value
        try:
            return self.signature.bind(*bound_args, *args, **own), options
        except TypeError as error:
            raise TypeError(f"{self._program}{self.signature}: {error}") from None

    def missing(self, bound: Bound, given: Mapping[str, Any]) -> list[str]:
        """Return the arguments that a call with these keywords would still need, in order."""
        bound_args, preset = bound
        rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [
            name
            for name, parameter in list(self.signature.parameters.items())[len(bound_args) :]
            if name not in given
            and name not in preset
            and parameter.default is parameter.empty
            and parameter.kind not in rest
        ]

    def is_option(self, name: object) -> bool:
        """True for a keyword that sets an option of the run."""
        return name not in self.names and name in OPTIONS

    def check_name(self, name: object) -> None:
        """Refuse a keyword that nothing here takes."""
        if not isinstance(name, str):
            raise TypeError(f"the name of an argument must be a string, not {name!r}")
        known = (*self.names, *OPTIONS)
        if name not in known and not self._takes_any:
            kind = f"argument of {self._program}{self.signature}"
            raise TypeError(unknown_name(name, known, kind))
