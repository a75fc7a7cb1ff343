"""SGLang's names for servers and for the APIs of others.

They come with the HTTP server of Ramet; until then each says what to use instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ramet.runtime.protocol import UnsupportedFeatureError

_INSTEAD = "ramet.Engine(model) runs a model on this machine, without a server"


class _NotYet:
    """A name that exists, and whose construction says when it will work."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedFeatureError(
            f"ramet.{cls.__name__} comes with the HTTP server of a later version; {_INSTEAD}"
        )


class Runtime(_NotYet):
    """A server process with an HTTP port. Constructing one raises `UnsupportedFeatureError`.

    Use `ramet.Engine(model)`: it runs the model on this machine, in a process of its own.

    Example:
        >>> ramet.Runtime(model_path="some/model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.Runtime comes with …
    """


class ServerArgs(_NotYet):
    """The options of a server. Constructing them raises `UnsupportedFeatureError`.

    The options of the engine are those of `ramet.Engine`.

    Example:
        >>> ramet.ServerArgs(model_path="some/model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.ServerArgs comes with …
    """


class RuntimeEndpoint(_NotYet):
    """A server that runs elsewhere. Constructing one raises `UnsupportedFeatureError`.

    Example:
        >>> ramet.RuntimeEndpoint("http://localhost:30000")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.RuntimeEndpoint comes with …
    """


class OpenAI(_NotYet):
    """An endpoint that speaks OpenAI's protocol. Constructing one raises
    `UnsupportedFeatureError`.

    Example:
        >>> ramet.OpenAI("some-model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.OpenAI comes with …
    """


class Anthropic(_NotYet):
    """Anthropic's API. Constructing one raises `UnsupportedFeatureError`.

    Example:
        >>> ramet.Anthropic("some-model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.Anthropic comes with …
    """


class LiteLLM(_NotYet):
    """LiteLLM's APIs. Constructing one raises `UnsupportedFeatureError`.

    Example:
        >>> ramet.LiteLLM("some-model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.LiteLLM comes with …
    """


class VertexAI(_NotYet):
    """Vertex AI's endpoints, which will be an `OpenAI(base_url=…)`. Constructing one raises
    `UnsupportedFeatureError`.

    Example:
        >>> ramet.VertexAI("some-model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.VertexAI comes with …
    """


class Crusoe(_NotYet):
    """Crusoe's endpoints, which will be an `OpenAI(base_url=…)`. Constructing one raises
    `UnsupportedFeatureError`.

    Example:
        >>> ramet.Crusoe("some-model")
        Traceback (most recent call last):
        ramet.runtime.protocol.errors.UnsupportedFeatureError: ramet.Crusoe comes with …
    """
