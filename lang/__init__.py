"""Ramet: a language for LLM programs whose calls share their prefixes, with its own runtime.

import ramet

@ramet.function
def ask(s, question):
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=64))

print(ask("What is a ramet?")["answer"])
"""

from . import backends, errors
from .api import function, gen, gen_int, gen_string, select, special
from .async_state import AsyncForkGroup, AsyncProgramState
from .backends import (
    Anthropic,
    Backend,
    Cached,
    Crusoe,
    Engine,
    Fake,
    LiteLLM,
    OpenAI,
    Runtime,
    RuntimeEndpoint,
    ServerArgs,
    VertexAI,
)
from .call_graph import CallGraph, CallNode
from .choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .context import backend, set_default_backend
from .conversation import messages, tool_result
from .dtypes import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from .events import ProgramEvent
from .fork import ForkGroup
from .media import image, video
from .program import Program
from .reasoning import separate_reasoning
from .roles import (
    assistant,
    assistant_begin,
    assistant_end,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .service import flush_cache, get_server_info
from .settings import GlobalConfig, global_config
from .splitting import Chunk, split
from .state import ProgramState
from .trimming import Trimmed, trim

__version__ = "0.1.0"

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "Anthropic",
    "AsyncForkGroup",
    "AsyncProgramState",
    "Backend",
    "Cached",
    "CallGraph",
    "CallNode",
    "Chunk",
    "Crusoe",
    "Engine",
    "Fake",
    "ForkGroup",
    "GlobalConfig",
    "LiteLLM",
    "OpenAI",
    "Program",
    "ProgramEvent",
    "ProgramState",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "Trimmed",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "backend",
    "backends",
    "errors",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "messages",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "special",
    "split",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool_result",
    "trim",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
