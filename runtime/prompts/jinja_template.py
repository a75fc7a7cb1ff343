"""Renders a model's Jinja chat template in a sandbox, with what such templates expect.

Templates are code from model files: they run without access to Python's internals, and nothing
they do reaches further than the text they return.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..protocol import ChatTemplateError

Message = Mapping[str, str]


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks training targets; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - read by jinja2 as it is

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class JinjaTemplate:
    """A compiled chat template.

    The clock that `strftime_now` reads stands still for a day, so that equal conversations are
    rendered equally and their prefix stays in the cache.
    """

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        self.uses_clock = False
        self._now = datetime.now()
        self._named_tokens = dict(named_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the model's chat template cannot be read, line {error.lineno}: {error.message}"
            ) from error

    def renew_clock(self) -> bool:
        """Set the clock if a new day has begun; return whether it has."""
        now = datetime.now()
        if now.date() == self._now.date():
            return False
        self._now = now
        return True

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation.

        Raises:
            ChatTemplateError: the template refuses the conversation, in its own words.
        """
        try:
            return self._template.render(
                **self._named_tokens,
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # code from a model file, anything may come
            raise ChatTemplateError(str(error) or type(error).__name__) from error

    def _strftime_now(self, format: str) -> str:
        self.uses_clock = True
        return self._now.strftime(format)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters, which a prompt does not want."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
