"""A long prompt beside generations is computed in steps of even work, alone in whole budgets."""

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduling.step_planner import EVEN_CONTEXT
from tests.runtime.scripted import Harness, generate

BUDGET = 256
LENGTH = 4 * EVEN_CONTEXT


def chunks_of_a_long_prompt(*, beside_a_decode: bool) -> list[tuple[int, int]]:
    """Return where each chunk of the long prompt begins, and how many tokens it has."""
    harness = Harness(num_slots=20_000, budget=BUDGET)
    endless = SamplingParams(max_new_tokens=500, ignore_eos=True)
    if beside_a_decode:
        harness.submit(generate("decode", "x", sampling=endless))
        harness.step()
    harness.submit(generate("long", "y" * LENGTH, sampling=SamplingParams(max_new_tokens=1)))
    chunks = []
    while not harness.receiver.ended("long"):
        batch = harness.scheduler.schedule()
        assert batch is not None
        assert len(batch.plan.input_ids) <= BUDGET
        result = harness.runner.collect(harness.runner.launch(batch.plan))
        chunks += [
            (chunk.start, chunk.end - chunk.start)
            for chunk in batch.chunks
            if chunk.sequence.num_ids >= LENGTH
        ]
        harness.scheduler.commit(batch, result)
    return chunks


def test_a_prompt_alone_takes_whole_budgets() -> None:
    chunks = chunks_of_a_long_prompt(beside_a_decode=False)
    assert {size for _, size in chunks} == {BUDGET}


def test_beside_a_generation_chunks_shrink_as_the_context_grows() -> None:
    chunks = chunks_of_a_long_prompt(beside_a_decode=True)
    work = [size * (1 + start / EVEN_CONTEXT) for start, size in chunks[:-1]]
    assert min(work) > 0.9 * BUDGET
    assert max(work) <= BUDGET
    assert sum(size for _, size in chunks) == LENGTH


def test_every_step_computes_something_of_a_prompt_of_any_length() -> None:
    harness = Harness(num_slots=20_000, budget=2)
    harness.submit(
        generate("a", "x", sampling=SamplingParams(max_new_tokens=3000, ignore_eos=True))
    )
    harness.step()
    harness.submit(generate("b", "y" * 50, sampling=SamplingParams(max_new_tokens=1)))
    for _ in range(60):
        harness.step()
    assert harness.receiver.ended("b")
