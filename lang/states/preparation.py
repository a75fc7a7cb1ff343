"""What is checked of a node, and decided about it, before a state appends it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import LOGPROB_NAMES, InvalidRequestError, params_of

from ..errors import RoleOrderError
from ..execution.seeds import gen_seed
from ..expressions import media
from ..expressions.graph import Gen, Media, Node, RoleBegin, RoleEnd, Select
from .value import Value

if TYPE_CHECKING:
    from .state import ProgramState


def prepared(state: ProgramState, node: Node) -> tuple[Node, Value | None]:
    """Return the node with its name, and the value of its variable if it has one.

    Raises:
        RoleOrderError: a role inside another, or the end of one that is not open.
        InvalidRequestError: options that do not go together.
        UnsupportedFeatureError: an image or a video.
    """
    match node:
        case Gen():
            value = _value_of_gen(state, node)
            return replace(node, name=value.name), value
        case Media():
            media.refuse(node)
        case Select():
            name = node.name or state._unnamed()
            return replace(node, name=name), Value(name, state._stream)
        case RoleBegin():
            if state._role is not None:
                raise RoleOrderError(
                    f"cannot open {node.role!r} inside {state._role!r}: close that role first"
                )
            state._role = node.role
        case RoleEnd():
            if state._role != node.role:
                open_now = f"{state._role!r} is open" if state._role else "no role is open"
                raise RoleOrderError(f"cannot close the role {node.role!r}: {open_now}")
            state._role = None
    return node, None


def _value_of_gen(state: ProgramState, node: Gen) -> Value:
    settings = state._run.settings
    own = dict(node.options)
    options: dict[str, Any] = {**settings.sampling, **own}
    _check_logprob_options(own, options)
    options["stop"] = (*options.get("stop", ()), *node.stops)
    value = Value(node.name or state._unnamed(), state._stream)
    value.sampling, value.wanted = params_of(options)
    value.with_text = options.get("return_text_in_logprobs", False)
    if node.seed is None:
        value.ordinal = state._num_gens
        value.seed = gen_seed(settings.seed, settings.row, state._stream.path, value.ordinal)
    else:
        value.seed = node.seed
    state._num_gens += 1
    if node.reasoning is not None:
        value.separate_reasoning(node.reasoning)
    return value


def _check_logprob_options(own: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse what says which log-probabilities to report where none are.

    Where a gen itself says that it reports none, those of its run are not meant for it.
    """
    if options.get("return_logprob", False):
        return
    given = own if "return_logprob" in own else options
    for name in LOGPROB_NAMES:
        if name != "return_logprob" and name in given:
            raise InvalidRequestError(
                f"{name} was given, and return_logprob is not on: give return_logprob=True too"
            )
