"""Whatever a program does and whatever fails: it ends, says why, and leaves nothing running."""

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramState
from ramet.errors import DeadlineError, ProgramError


class BodyError(Exception):
    """Raised by the random program itself."""


def append(state: ProgramState, rng: random.Random) -> list[ProgramState]:
    """Append something, and return the branches that began."""
    kind = rng.choice(["text", "gen", "gen", "select", "fork"])
    if kind == "text":
        state += "t"
    elif kind == "gen":
        state += ramet.gen(rng.choice("abc"))
    elif kind == "select":
        state += ramet.select(rng.choice("xyz"), ["1", "2"])
    else:
        group = state.fork(rng.randint(1, 3))
        group += ramet.gen("a")
        if rng.random() < 0.5:
            return list(group)
        group.join(on_error=rng.choice(["raise", "none"]))
    return []


def read(state: ProgramState, rng: random.Random) -> None:
    try:
        state[rng.choice("abcxyz")]
    except (ProgramError, KeyError):
        if rng.random() < 0.5:
            raise


@ramet.function
def history(s: ProgramState, rng: random.Random, depth: int = 0) -> None:
    states = [s]
    for _ in range(rng.randint(1, 10)):
        chance = rng.random()
        if chance < 0.7:
            states += append(rng.choice(states), rng)
        elif chance < 0.85:
            read(rng.choice(states), rng)
        elif chance < 0.95 and depth < 2:
            history(rng, depth + 1)
        elif chance > 0.98:
            raise BodyError


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.002]),
    st.sampled_from([None, 0.003, 0.02]),
    st.booleans(),
)
def test_every_program_ends_and_leaves_nothing(
    seed: int, failing: float, delay: float, timeout: float | None, stream: bool
) -> None:
    chance = random.Random(seed)

    def answer(prompt: str, name: str) -> str:
        if chance.random() < failing:
            raise RuntimeError("by chance")
        return "1"

    fake = ramet.Fake(answer, delay=delay)
    state = history.run(
        random.Random(seed),
        backend=fake,
        timeout=timeout,
        stream=stream,
        on_error="return",
    )
    error = state.error()
    assert error is None or isinstance(error, (ProgramError, BodyError, DeadlineError))
    assert fake.num_running == 0
    for name in filter(state.__contains__, "abcxyz"):
        with contextlib.suppress(ProgramError, BodyError, DeadlineError):
            state[name]
    assert isinstance(str(state), str)
