"""`s.fork(k)`: branches that begin where a state is now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidRequestError, UnsupportedFeatureError
from ..execution.stream import Stream
from ..expressions.graph import Fork
from .fork import ForkGroup

if TYPE_CHECKING:
    from .state import ProgramState


def start_fork(state: ProgramState, size: int, position_ids_offset: object) -> ForkGroup:
    """Start `size` branches of `state`; see `ProgramState.fork`."""
    if position_ids_offset is not None:
        raise UnsupportedFeatureError(
            "position_ids_offset can only be None: branches go on at their own positions"
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidRequestError(f"fork needs a number of branches of at least 1, not {size!r}")
    run, stream = state._run, state._stream
    with run.condition:
        state._check_open()
        path = [(state._num_forks, index) for index in range(size)]
        base = (stream, len(stream.log) + 1)
        streams = tuple(Stream(run, (*stream.path, step), base) for step in path)
        branches = [type(state)(run, branch, state) for branch in streams]
        state._num_forks += 1
        state._put(Fork(size), branches=streams)
    return ForkGroup(state, branches)
