"""The prefix tree alone, at up to a million nodes: match, insert, evict, longest pause."""

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from ramet.runtime.cache.eviction import POLICIES
from ramet.runtime.cache.radix_cache import RadixCache
from ramet.runtime.scheduling.kv_memory import MOST_AHEAD, MOST_LEAVES_AHEAD
from ramet.runtime.step import Int32Array
from tests.benchmarks.report import Table, median, spread

PROMPT = 4000
EVICTED = 500  # nodes per measurement
SMALL = 1000
ROUNDS = 3
R = TypeVar("R")


class Watch:
    """Takes the processor time of each operation: other programs on the machine do not count."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.seconds = 0.0

    def __call__(self, operation: Callable[[], R]) -> R:
        start = time.thread_time()
        result = operation()
        self.seconds = time.thread_time() - start
        self.longest = max(self.longest, self.seconds)
        return result


def grow(tree: RadixCache, num_nodes: int, watch: Watch, first: int = 0) -> None:
    """Insert prompts of 12 tokens, ten behind each beginning, until there are `num_nodes`."""
    slots = np.zeros(12, dtype=np.int32)
    number = first
    ids = np.arange(12, dtype=np.int32)
    while tree.num_nodes < num_nodes:
        ids[0], ids[4], ids[8] = number // 100, number // 10, number
        watch(partial(tree.insert, ids, slots, priority=number % 7))
        number += 1


def shared_prompt(tree: RadixCache, num_edges: int) -> Int32Array:
    """Put a prompt into the tree, in `num_edges` pieces; return it."""
    prompt = np.arange(PROMPT, dtype=np.int32) % 30_000 + 10_000_000
    slots = np.zeros(PROMPT, dtype=np.int32)
    for end in np.linspace(PROMPT / num_edges, PROMPT, num_edges).astype(int):
        tree.insert(prompt[:end], slots[:end])
    return prompt


def match_and_insert(num_nodes: int, num_edges: int, rounds: int) -> list[float]:
    """Return the milliseconds of matching and inserting prompts that differ near their end."""
    tree, watch, times = RadixCache(20 * num_nodes + 2_000_000), Watch(), []
    grow(tree, num_nodes, watch)
    prompt = shared_prompt(tree, num_edges)
    slots = np.zeros(PROMPT, dtype=np.int32)
    draw = random.Random(0)
    for number in range(rounds):
        ids = prompt.copy()
        ids[draw.randrange(PROMPT * 9 // 10, PROMPT) :] += 1_000_000 * (number + 1)

        def both(ids: Int32Array = ids) -> None:
            tree.match(ids)
            tree.insert(ids, slots)

        watch(both)
        times.append(1000 * watch.seconds)
    return times


def evict_costs(tree: RadixCache, watch: Watch) -> list[float]:
    """Return microseconds per evicted node."""
    costs = []
    for _ in range(ROUNDS):
        before, seconds = tree.num_nodes, 0.0
        while tree.num_nodes > before - EVICTED // ROUNDS:
            watch(lambda: tree.evict(4))
            seconds += watch.seconds
        costs.append(1e6 * seconds / (before - tree.num_nodes))
    return costs


def collect_ms() -> float:
    """Return the milliseconds of a full garbage collection that finds nothing, of five."""
    gc.collect()
    watch, times = Watch(), []
    for _ in range(5):
        watch(gc.collect)
        times.append(1000 * watch.seconds)
    return median(times)


def large_tree(policy: str, num_nodes: int) -> tuple[list[float], float, float]:
    """Return µs per evicted node, the longest operation and the collector's pause in ms."""
    tree, watch = RadixCache(8 * num_nodes, policy=policy), Watch()
    grow(tree, num_nodes, watch)
    costs = evict_costs(tree, watch)
    prompt = shared_prompt(tree, 100)
    handle = watch(lambda: tree.match(prompt)).handle
    watch(lambda: tree.lock(handle))
    watch(lambda: tree.unlock(handle))
    watch(lambda: tree.evict(MOST_AHEAD, most_leaves=MOST_LEAVES_AHEAD))
    return costs, 1000 * watch.longest, collect_ms()


def one_policy(policy: str, num_nodes: int) -> tuple[str, ...]:
    small = RadixCache(20 * SMALL, policy=policy)
    grow(small, SMALL, Watch())
    small_costs = evict_costs(small, Watch())
    gc.collect()
    gc.freeze()  # what the process has besides the tree is not looked at
    costs, longest, pause = large_tree(policy, num_nodes)
    without = collect_ms()
    gc.unfreeze()
    return (
        policy,
        spread(small_costs, 1),
        spread(costs, 1),
        f"{median(costs) / median(small_costs):.2f}",
        f"{longest:.1f}",
        f"{pause:.1f} ({without:.1f})",
    )


def measure(quick: bool) -> Table:
    num_nodes = 20_000 if quick else 1_000_000
    tree_nodes = 10_000 if quick else 100_000
    found = {edges: match_and_insert(tree_nodes, edges, 20 if quick else 200) for edges in (1, 100)}
    notes = [
        f"Match and insert of a {PROMPT:,}-token prompt that shares nine tenths or more, in a tree "
        f"of {tree_nodes:,} nodes: {spread(times, 3)} ms where the shared part is {edges} "
        f"edge{'s' * (edges > 1)}."
        for edges, times in found.items()
    ]
    notes.append(
        "Longest operation: of all inserts that built the tree, evictions, a match, lock and "
        "unlock over 100 edges, and what one step evicts ahead of need "
        f"({MOST_LEAVES_AHEAD} leaves)."
    )
    return Table(
        title="The prefix tree at a million nodes",
        what="The tree alone, no model; processor time. Evictions take one leaf's 4 tokens each.",
        target="match and insert ≤ 1 ms; evicting ≤ 3 times the cost at 1,000 nodes; no operation "
        "and no full garbage collection longer than 10 ms",
        columns=(
            "policy",
            f"µs per evicted node, {SMALL:,} nodes",
            f"{num_nodes:,} nodes",
            "ratio",
            "longest operation, ms",
            "gc.collect over the tree, ms (without it)",
        ),
        rows=[one_policy(policy, num_nodes) for policy in POLICIES],
        notes=notes,
    )
