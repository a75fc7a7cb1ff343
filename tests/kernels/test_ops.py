"""Every op against its definition, and with the same bits whatever else is in the call."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from ramet.kernels import linear_onednn, linear_reference, ops, sampling_reference
from ramet.kernels.philox import philox_4x32

KNOWN_ANSWERS = (  # of Random123's kat_vectors
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in words(counter))
    k0, k1 = (torch.tensor([word]) for word in words(key))
    assert [int(word) for word in philox_4x32((c0, c1, c2, c3), (k0, k1))] == words(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.lists(st.integers(0, 999)))
def test_noise_of_an_id_does_not_depend_on_the_others(
    seed: int, position: int, ids: list[int]
) -> None:
    every = ops.gumbel_noise([seed], [position], torch.arange(1000).unsqueeze(0))
    wanted = torch.tensor(ids, dtype=torch.long)
    some = ops.gumbel_noise([3, seed], [7, position], wanted.expand(2, -1))
    assert torch.equal(every[0, ids], some[1])
    assert torch.isfinite(every).all()


def test_noise_has_the_same_bits_in_every_implementation() -> None:
    seeds, positions = [0, 3, 2**32 + 5, 2**64 - 1], [0, 1, 77, 2**31 - 1]
    ids = torch.randint(0, 300_000, (4, 50), generator=torch.Generator().manual_seed(2))
    expected = ops.gumbel_noise(seeds, positions, ids, implementation="reference")
    assert torch.equal(ops.gumbel_noise(seeds, positions, ids, implementation="numpy"), expected)


def test_noise_has_the_moments_of_the_gumbel_distribution() -> None:
    noise = ops.gumbel_noise(range(100), [3] * 100, torch.arange(2000).expand(100, -1))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_extreme_bits_give_finite_noise() -> None:
    ends = sampling_reference.gumbel_of_bits(
        torch.tensor([0, 255]), torch.tensor([0, 0xFFFFFFFF])
    ).tolist()
    assert ends == pytest.approx([-3.347, 28.419], abs=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    vocab=st.sampled_from([1, 7, 16, 33, 500, 5000]),
    spread=st.sampled_from([0.0, 1.0, 4.0, 30.0]),
    temperatures=st.lists(st.sampled_from([1e-6, 0.3, 1.0, 2.5, 1e300]), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_argmax_that_skips_ids_equals_the_definition(
    vocab: int, spread: float, temperatures: list[float], seed: int
) -> None:
    count = len(temperatures)
    generator = torch.Generator().manual_seed(seed % 2**31)
    rows = torch.randn(count, vocab, generator=generator) * spread
    rows[:, ::3] = rows[:, :1].clone()  # equals, and some that are impossible
    rows[:, 1::4] = -math.inf
    rows -= rows.amax(-1, keepdim=True)
    seeds, positions = [seed ^ i for i in range(count)], list(range(count))
    expected, found = (
        ops.gumbel_argmax(rows, temperatures, seeds, positions, implementation=name)
        for name in ("reference", "numpy")
    )
    assert torch.equal(expected, found)


@pytest.mark.parametrize("implementation", ["reference", "numpy"])
def test_row_maximum_is_the_lowest_of_equals_and_nan_where_there_is_one(
    implementation: str,
) -> None:
    rows = torch.zeros(4, 50)
    rows[0, [31, 40]] = 2.0
    rows[1, 7] = math.nan
    rows[1, 20] = math.inf
    rows[2] = -math.inf
    values, ids = ops.row_maximum(rows[:, :45], implementation=implementation)
    assert ids[[0, 2, 3]].tolist() == [31, 0, 0]
    assert values[[0, 2, 3]].tolist() == [2.0, -math.inf, 0.0]
    assert math.isnan(values[1])


@pytest.mark.parametrize("implementation", ["reference", "onednn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 96), (576, 960), (100, 33), (7, 5)])
def test_linear_rows_have_the_same_bits_at_any_row_count(
    dtype: torch.dtype, inputs: int, outputs: int, implementation: str, threads: int
) -> None:
    if implementation == "onednn" and not linear_onednn.supports(torch.empty(1, 1, dtype=dtype)):
        pytest.skip(f"oneDNN does not multiply {dtype} on this machine")
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    x = torch.randn(130, inputs).to(dtype)
    packed = ops.pack_linear(weight, bias, implementation=implementation)
    expected = torch.cat([ops.linear(packed, tile) for tile in torch.split(x, 16)])
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 130):
        assert torch.equal(ops.linear(packed, x[:rows]), expected[:rows])
    exact = functional.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-4 if dtype is torch.float32 else 0.2
    torch.testing.assert_close(expected.double(), exact, rtol=tolerance, atol=tolerance)


def test_linear_of_a_shape_that_differs_by_rows_is_multiplied_in_tiles() -> None:
    packed = ops.pack_linear(torch.randn(20, 30), implementation="reference")
    counts = linear_reference.RowCounts(small=(), tiled=True)
    tiled = replace(packed, checked=dict.fromkeys(range(1, 65), counts))
    x = torch.randn(70, 30)
    expected = torch.cat([functional.linear(t, packed.weight) for t in torch.split(x[:64], 16)])
    assert torch.equal(ops.linear(tiled, x)[:64], expected)
    assert ops.padded_rows((packed, tiled), 1) == 16


def test_row_check_says_tiled_where_the_product_depends_on_the_row_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def careless(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.T + (1e-3 if len(x) not in (4, 16) else 0.0)

    monkeypatch.setattr(functional, "linear", careless)
    packed = ops.pack_linear(torch.randn(11, 13), implementation="reference")
    assert packed.rows == linear_reference.RowCounts(small=(4,), tiled=True)


@pytest.mark.parametrize("width", [16, 33, 64, 576])
@pytest.mark.parametrize("name", ["rms_norm", "silu_mul", "gelu_mul"])
def test_row_ops_have_the_same_bits_at_any_row_count(name: str, width: int, threads: int) -> None:
    x = torch.randn(100, 2 * width)
    weight = torch.randn(2 * width)

    def run(rows: torch.Tensor) -> torch.Tensor:
        if name == "rms_norm":
            return ops.rms_norm(rows, weight, 1e-5)
        return ops.silu_mul(rows) if name == "silu_mul" else ops.gelu_mul(rows)

    expected = run(x)
    for first, last in ((0, 1), (1, 4), (50, 57), (3, 99)):
        assert torch.equal(run(x[first:last].clone()), expected[first:last])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_ops_compute_what_their_names_say(dtype: torch.dtype) -> None:
    x = (torch.randn(40, 96) * 4).to(dtype)
    gate, up = x.float().chunk(2, -1)
    weight = torch.randn(96)
    rtol, atol = (1e-5, 1e-5) if dtype is torch.float32 else (8e-3, 1e-2)
    pairs = (
        (ops.silu_mul(x), functional.silu(gate) * up),
        (ops.gelu_mul(x), functional.gelu(gate, approximate="tanh") * up),
        (
            ops.rms_norm(x, weight, 1e-6, dtype),
            functional.rms_norm(x.float(), (96,), weight, 1e-6),
        ),
    )
    for found, expected in pairs:
        assert found.dtype is dtype
        torch.testing.assert_close(found.float(), expected, rtol=rtol, atol=atol)


def test_activations_of_large_inputs_stay_finite() -> None:
    x = torch.tensor([[-200.0, 200.0, -60.0, 1.0, 1.0, 1.0]])
    assert torch.isfinite(ops.silu_mul(x)).all()
    assert torch.isfinite(ops.gelu_mul(x)).all()


def test_rotary_turns_pairs_of_halves() -> None:
    x = torch.randn(5, 3, 8)
    angles = torch.rand(5, 1, 4)
    cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
    turned = torch.view_as_complex(torch.stack((x[..., :4], x[..., 4:]), -1)) * torch.polar(
        torch.ones_like(angles), angles
    )
    expected = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(ops.rotary(x, cos, sin), expected)


def test_log_softmax_gather_has_the_same_bits_in_any_batch(threads: int) -> None:
    logits = torch.randn(40, 50_000) * 4
    rows, ids = torch.arange(40).repeat_interleave(3), torch.randint(0, 50_000, (120,))
    found = ops.log_softmax_gather(logits, rows, ids)
    expected = torch.log_softmax(logits.double(), -1)[rows, ids]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for row in (0, 7, 39):
        zero = torch.zeros(3, dtype=torch.long)
        alone = ops.log_softmax_gather(logits[row : row + 1].clone(), zero, ids[rows == row])
        assert torch.equal(alone, found[rows == row])


def test_unknown_implementation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="reference"):
        ops.silu_mul(torch.zeros(1, 2), implementation="quantum")
