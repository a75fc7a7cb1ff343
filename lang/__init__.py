"""Ramet: a language for LLM programs whose calls share their prefixes, with its own runtime.

import ramet

@ramet.function
def ask(s, question):
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=64))

print(ask("What is a ramet?")["answer"])
"""

from . import backends, errors
from .api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    select,
    special,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .backends import Backend, Engine, Fake
from .choices import greedy_token_selection, token_length_normalized
from .context import backend, set_default_backend
from .fork import ForkGroup
from .program import Program
from .state import ProgramState

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Engine",
    "Fake",
    "ForkGroup",
    "Program",
    "ProgramState",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "backend",
    "backends",
    "errors",
    "function",
    "gen",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "special",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "user",
    "user_begin",
    "user_end",
]
