"""What can run the requests of programs: `ramet.backends`."""

from .base import Backend
from .fake import Fake
from .local import Engine

__all__ = ["Backend", "Engine", "Fake"]
