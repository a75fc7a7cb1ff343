"""Log-probabilities in the meta info of programs are those that transformers computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ramet
from ramet import ProgramState
from tests.models import write_model

CLOSE = 2e-4  # between two implementations in float32
CHOSEN = [7, 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(folder, process="thread", dtype="float32", max_total_tokens=4000) as engine:
        yield engine


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@ramet.function
def program(s: ProgramState, num_samples: int) -> int:
    s += ramet.user("What is the capital of France?")
    with s.assistant():
        s += ramet.gen("first", max_tokens=5)
        s += ", and then "
        length = s.num_tokens
        s += ramet.gen(
            "second",
            max_tokens=4,
            n=num_samples,
            return_logprob=True,
            logprob_start_len=3,
            top_logprobs_num=2,
            token_ids_logprob=CHOSEN,
        )
    return length


def table_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_logprobs_are_right_on_a_cold_and_on_a_warm_cache(
    engine: ramet.Engine, model: Any, num_samples: int
) -> None:
    engine.flush_cache()
    for _ in range(2):
        state = program(num_samples, seed=1, backend=engine)
        info = state.get_meta_info("second")
        assert state._stream.tokens is not None
        ids = list(state._stream.tokens.ids())[: int(state.ret_value)]
        assert [entry[1] for entry in info["input_token_logprobs"]] == ids[3:]
        for sample in info.get("samples", [info]):
            output = [entry[1] for entry in sample["output_token_logprobs"]]
            table = table_of(model, ids + output)
            rows = [*info["input_token_logprobs"], *sample["output_token_logprobs"]]
            top = [*info["input_top_logprobs"], *sample["output_top_logprobs"]]
            chosen = [*info["input_token_ids_logprobs"], *sample["output_token_ids_logprobs"]]
            for place, (row, best, some) in enumerate(zip(rows, top, chosen, strict=True), 2):
                assert row[0] == pytest.approx(float(table[place, row[1]]), abs=CLOSE)
                expected = table[place].topk(2).values.tolist()
                assert [entry[0] for entry in best] == pytest.approx(expected, abs=CLOSE)
                assert [entry[:2] for entry in some] == [
                    [pytest.approx(float(table[place, token]), abs=CLOSE), token]
                    for token in CHOSEN
                ]
