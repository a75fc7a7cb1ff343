"""The same logits, bit for bit, however a sequence is batched and cut."""

import numpy as np
import pytest
import torch

from ramet.runtime.model_runner import ModelRunner
from ramet.runtime.models import LoadedModel, load_model
from tests.models import write_model
from tests.runtime.plans import Piece, logits_of, make_plan, whole

LENGTHS = (190, 64, 65, 1, 17, 130)
NUM_SLOTS = 1200


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = write_model(tmp_path_factory.mktemp("models") / "m", "qwen2", hidden_size=72)
    return load_model(folder, dtype=request.param)


def sequences(rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(3, 360, length).tolist() for length in LENGTHS]


def scattered_slots(rng: np.random.Generator) -> list[list[int]]:
    """Return slots in no order for each sequence, disjoint."""
    slots = (rng.permutation(NUM_SLOTS) + 1).tolist()
    ends = np.cumsum(LENGTHS).tolist()
    return [slots[end - length : end] for end, length in zip(ends, LENGTHS, strict=True)]


def alone(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    """Return the logits of a sequence in a cache of its own, slots in order."""
    (logits,) = logits_of(ModelRunner(loaded, 256), [whole(ids, range(1, len(ids) + 1))])
    return logits


def test_batched_equals_alone(loaded: LoadedModel, threads: int) -> None:
    rng = np.random.default_rng(threads)
    ids, slots = sequences(rng), scattered_slots(rng)
    pieces = [whole(one, where) for one, where in zip(ids, slots, strict=True)]
    batched = logits_of(ModelRunner(loaded, NUM_SLOTS), pieces)
    for one, logits in zip(ids, batched, strict=True):
        assert torch.equal(logits, alone(loaded, one))


@pytest.mark.parametrize("largest", [1, 7, 100])
def test_chunked_and_interleaved_equals_whole(
    loaded: LoadedModel, threads: int, largest: int
) -> None:
    rng = np.random.default_rng(largest * 10 + threads)
    ids, slots = sequences(rng), scattered_slots(rng)
    runner = ModelRunner(loaded, NUM_SLOTS)
    done = [0] * len(ids)
    parts: list[list[torch.Tensor]] = [[] for _ in ids]
    while any(n < len(one) for n, one in zip(done, ids, strict=True)):
        running = [i for i, one in enumerate(ids) if done[i] < len(one) and rng.random() < 0.7]
        pieces = []
        for i in running:
            end = min(len(ids[i]), done[i] + int(rng.integers(1, largest + 1)))
            pieces.append(Piece(ids[i], slots[i], done[i], end))
            done[i] = end
        if pieces:
            for i, logits in zip(running, logits_of(runner, pieces), strict=True):
                parts[i].append(logits)
    for one, pieces_of_one in zip(ids, parts, strict=True):
        assert torch.equal(torch.cat(pieces_of_one), alone(loaded, one))


def test_shared_prefix_slots_equal_a_copy_of_their_own(loaded: LoadedModel, threads: int) -> None:
    rng = np.random.default_rng(threads)
    trunk = rng.integers(3, 360, 100).tolist()
    branches = [trunk + rng.integers(3, 360, n).tolist() for n in (1, 30, 65)]
    slots = (rng.permutation(NUM_SLOTS) + 1).tolist()
    runner = ModelRunner(loaded, NUM_SLOTS)
    logits_of(runner, [whole(trunk, slots)])
    pieces = [
        Piece(branch, slots[:100] + slots[200 * (i + 1) :], 100, len(branch))
        for i, branch in enumerate(branches)
    ]
    for branch, logits in zip(branches, logits_of(runner, pieces), strict=True):
        assert torch.equal(logits, alone(loaded, branch)[100:])


def test_copied_slots_equal_the_originals(loaded: LoadedModel) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 360, 80).tolist()
    runner = ModelRunner(loaded, NUM_SLOTS)
    logits_of(runner, [whole(ids[:79], range(1, 80))])
    runner.copy_kv(list(range(1, 80)), list(range(300, 379)))
    (logits,) = logits_of(runner, [Piece(ids, [*range(300, 379), 500], 79, 80)])
    assert torch.equal(logits, alone(loaded, ids)[79:])


def test_kv_read_out_and_written_elsewhere_gives_the_same_logits(loaded: LoadedModel) -> None:
    ids = np.random.default_rng(0).integers(3, 360, 80).tolist()
    runner, other = ModelRunner(loaded, 256), ModelRunner(loaded, 100)
    logits_of(runner, [whole(ids[:79], range(101, 180))])
    rows = runner.read_kv(np.arange(101, 180, dtype=np.int32))
    assert rows.shape == (79, runner.kv_row_bytes)
    assert other.kv_layout == runner.kv_layout
    rows.setflags(write=False)  # as rows mapped from a file are
    other.write_kv(np.arange(79, 0, -1, dtype=np.int32), rows)
    (logits,) = logits_of(other, [Piece(ids, [*range(79, 0, -1), 90], 79, 80)])
    assert torch.equal(logits, alone(loaded, ids)[79:])


def test_kv_of_a_wrong_shape_or_slot_is_refused(loaded: LoadedModel) -> None:
    runner = ModelRunner(loaded, 10)
    rows = runner.read_kv(np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="rows must be uint8"):
        runner.write_kv(np.array([1], np.int32), rows)
    for slot in (0, 11):
        with pytest.raises(ValueError, match="numbered 1 to 10"):
            runner.read_kv(np.array([slot], np.int32))
    assert runner.read_kv(np.zeros(0, np.int32)).shape == (0, runner.kv_row_bytes)


def test_threads_do_not_change_the_bits(loaded: LoadedModel) -> None:
    ids = sequences(np.random.default_rng(5))[0]
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(alone(loaded, ids))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_logit_rows_can_be_any_subset(loaded: LoadedModel) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 360, 90).tolist()
    rows = [89, 3, 40, 40]
    plan = make_plan([whole(ids, range(1, 91))], rows=rows)
    logits = ModelRunner(loaded, 100).launch(plan).logits
    assert torch.equal(logits, alone(loaded, ids)[rows])


def test_step_without_logit_rows_only_fills_the_cache(loaded: LoadedModel) -> None:
    ids = sequences(np.random.default_rng(0))[0]
    runner = ModelRunner(loaded, 256)
    plan = make_plan([Piece(ids, range(1, 191), 0, 100)], rows=[])
    assert runner.collect(runner.launch(plan)).tokens == []
    (logits,) = logits_of(runner, [Piece(ids, range(1, 191), 100, 190)])
    assert torch.equal(logits, alone(loaded, ids)[100:])
