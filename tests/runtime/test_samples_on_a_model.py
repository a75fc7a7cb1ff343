"""Samples and log-probabilities on a tiny model: equal in bits however the requests are run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import (
    Finished,
    GenerateRequest,
    LogprobParams,
    SamplingParams,
    ScoreRequest,
    Text,
    TokenIds,
    sample_seed,
)
from tests.models import write_model

from .scripted import Receiver

PROMPT = (Text("The quick brown fox jumps over the lazy dog. What then?"),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def start(folder: Path, **options: object) -> Engine:
    options = {"dtype": "float32", "max_total_tokens": 2000, **options}
    return Engine.from_config(EngineConfig(model=str(folder), **options))  # type: ignore[arg-type]


def run(engine: Engine, *requests: GenerateRequest) -> list[Finished]:
    receiver = Receiver()
    for request in requests:
        engine.submit(request, receiver)
    receiver.wait(*[request.id for request in requests], timeout=60)
    return [receiver.finished(request.id) for request in requests]


def request(name: str, n: int, seed: int, **options: object) -> GenerateRequest:
    sampling = SamplingParams(
        max_new_tokens=12, temperature=0.9, n=n, repetition_penalty=1.1, frequency_penalty=0.3
    )
    return GenerateRequest(id=name, prompt=PROMPT, sampling=sampling, seed=seed, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_radix_cache": False},
        {"max_running_requests": 2},
        {"max_total_tokens": 90, "chunked_prefill_size": 7},
    ],
    ids=lambda options: ",".join(options) or "default",
)
def test_samples_are_those_of_single_requests_in_bits(
    folder: Path, options: dict[str, object]
) -> None:
    logprobs = LogprobParams(start=0, top=3)
    engine = start(folder, enable_radix_cache=False)
    singles = [
        run(engine, request(f"r{i}", 1, sample_seed(11, i), logprobs=logprobs))[0] for i in range(4)
    ]
    engine.close()
    engine = start(folder, **options)
    for name in ("cold", "warm"):
        found = run(
            engine, request(name, 4, 11, logprobs=logprobs), request(f"{name} other", 1, 3)
        )[0]
        assert found.samples == tuple(single.sample for single in singles)
        assert found.prompt_logprobs == singles[0].prompt_logprobs
    engine.close()


def test_logprobs_are_those_of_transformers(folder: Path) -> None:
    ids = list(range(30, 60))
    engine = start(folder)
    logprobs = LogprobParams(start=0, top=5, token_ids=(7, 9))
    sampling = SamplingParams(
        max_new_tokens=8, temperature=0.7, ignore_eos=True, repetition_penalty=1.5
    )
    finished = run(
        engine,
        GenerateRequest(
            id="r", prompt=(TokenIds.of(ids),), sampling=sampling, seed=2, logprobs=logprobs
        ),
    )[0]
    engine.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    every = ids + list(finished.sample.ids)
    with torch.inference_mode():
        expected = model(torch.tensor([every])).logits[0].log_softmax(-1)
    found = [*finished.prompt_logprobs, *finished.sample.logprobs]
    assert [one.id for one in found] == every
    assert found[0].logprob is None
    for position, one in enumerate(found[1:], 1):
        row = expected[position - 1]
        wanted = [row[every[position]], row[7], row[9], *(row[token] for token in one.top_ids)]
        assert one.logprob is not None
        values = [one.logprob, *one.token_logprobs, *one.top_logprobs]
        torch.testing.assert_close(
            torch.tensor(values), torch.stack(wanted), atol=2e-4, rtol=0, check_dtype=False
        )
        assert list(one.top_logprobs) == sorted(one.top_logprobs, reverse=True)
        assert len(one.top_ids) == 5


def test_unconditional_scores_are_those_of_the_bare_option(folder: Path) -> None:
    engine = start(folder)
    receiver = Receiver()
    options = (" a tree", " the trunk")
    engine.submit(
        ScoreRequest(id="s", prompt=PROMPT, options=options, unconditional=True), receiver
    )
    receiver.wait("s", timeout=60)
    for index, option in enumerate(receiver.scored("s").options):
        alone = run(
            engine,
            GenerateRequest(
                id=f"alone{index}",
                prompt=(option.ids,),
                sampling=SamplingParams(max_new_tokens=0),
                logprobs=LogprobParams(start=0),
            ),
        )[0]
        expected = [one.logprob or 0.0 for one in alone.prompt_logprobs]
        assert list(option.unconditional or ()) == expected
    engine.close()


def test_retracted_samples_are_undisturbed_in_bits(folder: Path) -> None:
    sampling = SamplingParams(max_new_tokens=60, temperature=0.8, ignore_eos=True, n=4)

    def answer(num_slots: int) -> tuple[list[bytes], int]:
        engine = start(folder, max_total_tokens=num_slots)
        reserve = engine._loop._scheduler._planner.reserve
        reserve.on_step = lambda: None  # type: ignore[method-assign]
        reserve.on_retraction = lambda: None  # type: ignore[method-assign]
        reserve.ratio = 0.02
        found = run(engine, GenerateRequest(id="r", prompt=PROMPT, sampling=sampling, seed=5))[0]
        retractions = int(str(engine.info()["retractions"]))
        engine.close()
        return [sample.ids.packed for sample in found.samples], retractions

    small, num_small = answer(170)
    large, num_large = answer(2000)
    assert num_small > 0
    assert num_large == 0
    assert small == large
