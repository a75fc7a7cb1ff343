"""`retries=n`: requests that failed for a reason that may pass are sent again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ramet.runtime.protocol import RETRYABLE, ErrorCode, Failed

from ..backends.timeline import Timeline
from . import dispatcher
from .seeds import gen_seed

if TYPE_CHECKING:
    from ..expressions.graph import Gen, Select
    from ..states.value import Value
    from .stream import Stream

FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0  # seconds before a request goes to a full queue again

_timeline = Timeline("ramet-retries")


def send_again(stream: Stream, node: Gen | Select, event: Failed) -> bool:
    """Send a failed request once more, at once or a little later; False where it stays failed.

    It stays failed where the reason will not pass, the attempts are used up, the time limit comes
    first, or some of its text was read already. A request that began to run gets another derived
    seed; one that a full queue refused did not, and keeps its own, so that the load of a backend
    changes no result.
    """
    run = stream.run
    value = run.values[node.id]
    is_final = event.code not in RETRYABLE or value.attempts > run.settings.retries
    if is_final or value.num_received or run.cancelled is not None:
        return False
    again = partial(stream.resend, event.request_id, node)
    if event.code is not ErrorCode.OVERLOADED:
        value.attempts += 1
        _renew_seed(stream, value)
        again()
        return True
    delay = min(FIRST_DELAY * 2 ** (value.attempts - 1), LONGEST_DELAY)
    remaining = run.remaining()
    if remaining is not None and delay >= remaining:
        return False
    value.attempts += 1
    _timeline.at(delay, event.request_id, partial(dispatcher.put, stream, again))
    return True


def _renew_seed(stream: Stream, value: Value) -> None:
    if value.ordinal >= 0:
        settings = stream.run.settings
        attempt = value.attempts - 1
        value.seed = gen_seed(settings.seed, settings.row, stream.path, value.ordinal, attempt)
