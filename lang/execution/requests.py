"""The requests of a state's nodes."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from ramet.runtime.protocol import GenerateRequest, ScoreRequest, Segment

from ..choices import needs_unconditional
from ..expressions.graph import Gen, Select

if TYPE_CHECKING:
    from .stream import Stream

_numbers = itertools.count(1)


def of_gen(stream: Stream, node: Gen, prompt: tuple[Segment, ...]) -> GenerateRequest:
    """Return the request that generates the text of a node."""
    run = stream.run
    value = run.values[node.id]
    return GenerateRequest(
        id=_request_id(),
        prompt=prompt,
        sampling=value.sampling,
        seed=value.seed,
        constraint=node.constraint,
        logprobs=value.wanted,
        stream=run.stream,
        timeout=run.remaining(),
        priority=run.settings.priority,
        cache_salt=run.settings.cache_salt,
        label=value.name,
        state_id=stream.state_id,
        is_repeatable=run.settings.is_seeded or node.seed is not None,
    )


def of_select(stream: Stream, node: Select, prompt: tuple[Segment, ...]) -> ScoreRequest:
    """Return the request that scores the options of a node."""
    run = stream.run
    return ScoreRequest(
        id=_request_id(),
        prompt=prompt,
        options=node.options,
        unconditional=needs_unconditional(node.method),
        timeout=run.remaining(),
        priority=run.settings.priority,
        cache_salt=run.settings.cache_salt,
        label=run.values[node.id].name,
        state_id=stream.state_id,
    )


def _request_id() -> str:
    return f"{os.getpid():x}-{next(_numbers)}"
