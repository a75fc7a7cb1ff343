"""How often each position of a fork's trunk is computed."""

from dataclasses import dataclass
from string import ascii_letters

import ramet
from tests.benchmarks.report import Table, empty_cache

TRUNK = (
    "The city library is open from Monday to Saturday, from nine in the morning to seven in the "
    "evening. Anyone who lives in the city may borrow up to ten books for four weeks. "
) * 8


@ramet.function
def trunk_only(s: ramet.ProgramState) -> None:
    s += ramet.user(TRUNK) + ramet.user_begin()
    s += ramet.gen("nothing", max_tokens=0)
    s += ramet.user_end()


@ramet.function
def ask(s: ramet.ProgramState, k: int, own_question: bool) -> None:
    s += ramet.user(TRUNK)
    if not own_question:
        s += ramet.assistant_begin()
    forks = s.fork(k)
    for i in range(k):
        if own_question:
            # the first token after the role's marker is already the child's own
            forks[i] += ramet.user(f"{ascii_letters[i]}) How many books?") + ramet.assistant_begin()
        forks[i] += ramet.gen("reply", max_tokens=8, ignore_eos=True)
    forks.join()


@dataclass(frozen=True)
class Count:
    """What k children computed, after their own tokens are taken away."""

    trunk: int
    computed_of_trunk: int
    recomputed: int
    own: int


def count(engine: ramet.Engine, k: int, own_question: bool) -> Count:
    empty_cache(engine)
    trunk = trunk_only.run(backend=engine).usage.prompt_tokens
    empty_cache(engine)
    state = ask.run(k, own_question, backend=engine, temperature=1.0, seed=1)
    usage = state.usage
    if own_question:
        own = usage.prompt_tokens - k * trunk
    else:  # the children's prompts are equal: all of them is trunk
        own, trunk = 0, usage.prompt_tokens // k
    return Count(trunk, usage.computed_tokens - own, usage.recomputed_tokens, own)


def measure(quick: bool) -> Table:
    rows: list[tuple[str, ...]] = []
    engine = ramet.Engine()
    try:
        for own_question in (False, True):
            for k in (2, 8) if quick else (2, 8, 32):
                found = count(engine, k, own_question)
                rows.append(
                    (
                        "a question of its own" if own_question else "nothing: equal prompts",
                        str(k),
                        str(found.trunk),
                        str(found.computed_of_trunk),
                        f"{found.computed_of_trunk / found.trunk:.2f}",
                        str(found.recomputed),
                    )
                )
    finally:
        engine.close()
    return Table(
        title="Fork: what is computed of the trunk",
        what="One trunk, k children submitted together with an empty cache, 8 sampled tokens "
        "each. Counted from the states' usage; the children's own tokens are taken away.",
        target="each position of the trunk computed once; recomputed positions counted apart",
        columns=("each child adds", "k", "trunk", "computed of it", "times", "recomputed"),
        rows=rows,
    )
