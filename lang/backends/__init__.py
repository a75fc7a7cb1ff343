"""What can run the requests of programs: `ramet.backends`."""

from .base import Backend
from .cached import Cached
from .fake import Fake
from .local import Engine
from .offline import OfflineOptions
from .remote import (
    Anthropic,
    Crusoe,
    LiteLLM,
    OpenAI,
    Runtime,
    RuntimeEndpoint,
    ServerArgs,
    VertexAI,
)

__all__ = [
    "Anthropic",
    "Backend",
    "Cached",
    "Crusoe",
    "Engine",
    "Fake",
    "LiteLLM",
    "OfflineOptions",
    "OpenAI",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "VertexAI",
]
