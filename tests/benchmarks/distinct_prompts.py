"""Prompts that share nothing: what the tree costs where it brings nothing."""

import random
import time
from string import ascii_letters

import ramet
from tests.benchmarks.report import Table, empty_cache, spread

WORDS = [
    *("river", "stone", "paper", "window", "garden", "morning", "letter", "engine", "silver"),
    *("copper", "market", "winter", "island", "harbour", "bridge", "candle", "forest", "signal"),
    *("mirror", "pocket", "summer", "village", "ladder", "basket"),
]


@ramet.function
def go_on(s: ramet.ProgramState, text: str) -> None:
    s += text + ramet.gen("more", max_tokens=4, ignore_eos=True)


def prompt(number: int, words: int) -> str:
    """Return a text whose first token is already its own; about one token per word."""
    draw = random.Random(number)
    first = ascii_letters[number % len(ascii_letters)]
    return f"{first}) " + " ".join(draw.choice(WORDS) for _ in range(words))


def measure(quick: bool) -> Table:
    count = 4 if quick else 32
    engine = ramet.Engine()
    shares, tokens, cached = [], [], 0
    try:
        go_on.run(prompt(0, 500), backend=engine)
        for turn in range(1 if quick else 3):
            empty_cache(engine)
            rows = [(prompt(52 * turn + i, 509),) for i in range(count)]
            tree = tree_seconds(engine)
            start = time.perf_counter()
            states = go_on.run_batch(rows, backend=engine, temperature=0)
            wall = time.perf_counter() - start
            shares.append(100 * (tree_seconds(engine) - tree) / wall)
            tokens += [state.usage.prompt_tokens for state in states]
            cached += sum(state.usage.cached_tokens for state in states)
    finally:
        engine.close()
    return Table(
        title="Nothing shared: what the tree costs",
        what=f"{count} prompts that differ from the first token on, {min(tokens)}–{max(tokens)} "
        f"tokens each, 4 tokens generated, all at once, {len(shares)} times with an empty cache. "
        "Tree time is all time in matching, inserting, locking and evicting.",
        target="≤ 0.5 % of the wall time",
        columns=("tree ÷ wall, per cent: median (range)", "cached tokens"),
        rows=[(spread(shares, 3), str(cached))],
    )


def tree_seconds(engine: ramet.Engine) -> float:
    return float(str(engine.info()["tree_seconds"]))
