"""Derived seeds."""

import pytest

import ramet
from ramet.errors import InvalidRequestError
from ramet.execution.seeds import gen_seed, nested_seed
from ramet.runtime.protocol import GenerateRequest


def seeds_of(fake: ramet.Fake) -> dict[tuple[str, str], int]:
    return {
        (r.state_id.partition(".")[2], r.label): r.seed
        for r in fake.requests
        if isinstance(r, GenerateRequest)
    }


@ramet.function
def tree(s: ramet.ProgramState) -> None:
    s += ramet.gen("a") + ramet.gen("b")
    group = s.fork(2)
    group += ramet.gen("c")
    group.join()
    again = s.fork(2)
    again += ramet.gen("c")


@ramet.function
def outer(s: ramet.ProgramState) -> None:
    tree()
    tree()


def test_seed_is_a_fixed_function_of_its_parts() -> None:
    assert gen_seed(1, 2, ((0, 1),), 3) == 11131188501592731376


def test_every_gen_has_its_own_seed() -> None:
    fake = ramet.Fake(lambda prompt, name: "x")
    tree(backend=fake, seed=1)
    seeds = [r.seed for r in fake.requests if isinstance(r, GenerateRequest)]
    assert len(set(seeds)) == len(seeds) == 6
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_same_run_seed_repeats() -> None:
    first, second = ramet.Fake(lambda p, n: "x"), ramet.Fake(lambda p, n: "x", delay=0.01)
    state = tree(backend=first)
    tree(backend=second, seed=state.seed)
    assert seeds_of(first) == seeds_of(second)


def test_first_row_of_a_batch_is_the_run_itself() -> None:
    alone, batch = ramet.Fake(lambda p, n: "x"), ramet.Fake(lambda p, n: "x")
    tree(backend=alone, seed=5)
    tree.run_batch([{}, {}], backend=batch, seed=5)
    seeds = [r.seed for r in batch.requests if isinstance(r, GenerateRequest)]
    assert len(set(seeds)) == 12
    assert set(seeds_of(alone).values()) < set(seeds)


def test_nested_programs_derive_their_seeds() -> None:
    fake = ramet.Fake(lambda p, n: "x")
    outer(backend=fake, seed=5)
    seeds = [r.seed for r in fake.requests if isinstance(r, GenerateRequest)]
    assert len(set(seeds)) == 12
    assert gen_seed(nested_seed(5, 0, 0), 0, (), 0) in seeds


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "1"])
def test_seed_must_be_an_unsigned_64_bit_integer(seed: object) -> None:
    with pytest.raises(InvalidRequestError, match="seed"):
        tree(backend=ramet.Fake(), seed=seed)
