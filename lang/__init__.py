"""Ramet: a language for LLM programs whose calls share their prefixes, with its own runtime.

import ramet

@ramet.function
def ask(s, question):
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=64))

print(ask("What is a ramet?")["answer"])
"""

from . import backends, errors
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
from .choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .conversations.conversation import messages, tool_result
from .conversations.splitting import Chunk, split
from .conversations.trimming import Trimmed, trim
from .execution.context import backend, set_default_backend
from .expressions.api import function, gen, gen_int, gen_string, select, special
from .expressions.dtypes import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from .expressions.media import image, video
from .expressions.reasoning import separate_reasoning
from .expressions.roles import (
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
from .programs.call_graph import CallGraph, CallNode
from .programs.program import Program
from .service import flush_cache, get_server_info
from .settings import GlobalConfig, global_config
from .states.async_fork import AsyncForkGroup
from .states.async_state import AsyncProgramState
from .states.events import ProgramEvent
from .states.fork import ForkGroup
from .states.state import ProgramState

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
