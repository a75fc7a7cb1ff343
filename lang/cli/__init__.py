"""The `ramet` command: run a program of a file, tell about a model, tell the version."""

from .main import main

__all__ = ["main"]
