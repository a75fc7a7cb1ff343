"""The whole engine on a tiny random model: outputs are equal to the bit however it is run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import (
    GenerateRequest,
    ModelNotFoundError,
    OptionScore,
    Request,
    RoleBegin,
    RoleEnd,
    SamplingParams,
    ScoreRequest,
    Text,
)
from ramet.runtime.worker_client import WorkerEngine
from tests.models import write_model

from .scripted import Receiver

Answers = dict[str, tuple[bytes, str] | tuple[OptionScore, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def config(folder: Path, **options: object) -> EngineConfig:
    options = {"dtype": "float32", "max_total_tokens": 2000, **options}
    return EngineConfig(model=str(folder), **options)  # type: ignore[arg-type]


def workload() -> list[Request]:
    """Forks of one trunk, equal prompts, chats, choices; greedy and sampled."""
    trunk = "The quick brown fox jumps over the lazy dog. " * 4
    requests: list[Request] = []
    for index in range(6):
        sampling = SamplingParams(max_new_tokens=12, temperature=index % 3 / 2)
        prompt = trunk + ("What then?" if index % 2 else f"Question {index}?")
        requests.append(
            GenerateRequest(id=f"g{index}", prompt=(Text(prompt),), sampling=sampling, seed=index)
        )
    chat = (
        RoleBegin("user"),
        Text("Hello there"),
        RoleEnd("user"),
        RoleBegin("assistant", "user", generate=True),
    )
    requests.append(GenerateRequest(id="chat", prompt=chat, seed=9))
    for index in range(2):
        options = ("yes", "no", "perhaps not")
        requests.append(ScoreRequest(id=f"s{index}", prompt=(Text(trunk),), options=options))
    return requests


def answers(engine: Engine | WorkerEngine, *, together: bool = True, shuffle: int = 0) -> Answers:
    receiver, requests = Receiver(), workload()
    if shuffle:
        random.Random(shuffle).shuffle(requests)
    for request in requests:
        engine.submit(request, receiver)
        if not together:
            receiver.wait(request.id)
    receiver.wait(*[request.id for request in requests], timeout=60)
    engine.close()
    result: Answers = {}
    for request in requests:
        if isinstance(request, ScoreRequest):
            result[request.id] = receiver.scored(request.id).options
        else:
            finished = receiver.finished(request.id)
            result[request.id] = (finished.sample.ids.packed, finished.sample.text)
    return result


@pytest.fixture(scope="module")
def expected(folder: Path) -> Answers:
    """Every request alone, nothing cached."""
    engine = Engine.from_config(config(folder, enable_radix_cache=False))
    return answers(engine, together=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_radix_cache": False},
        {"chunked_prefill_size": 7},
        {"max_running_requests": 2},
        {"max_total_tokens": 150, "max_running_requests": 4, "chunked_prefill_size": 32},
    ],
    ids=lambda options: ",".join(options) or "default",
)
def test_answers_do_not_depend_on_batch_cache_chunks_or_pool(
    folder: Path, expected: Answers, options: dict[str, object]
) -> None:
    assert answers(Engine.from_config(config(folder, **options))) == expected


@pytest.mark.parametrize("shuffle", [1, 2])
def test_answers_do_not_depend_on_the_order_of_arrival(
    folder: Path, expected: Answers, shuffle: int
) -> None:
    engine = Engine.from_config(config(folder))
    assert answers(engine, together=False, shuffle=shuffle) == expected


def test_a_worker_process_gives_the_same_bits(folder: Path, expected: Answers) -> None:
    engine = WorkerEngine(config(folder, num_threads=1))
    info = engine.info()
    assert (info["process"], info["dtype"], info["num_slots"]) == ("worker", "float32", 2000)
    assert answers(engine) == expected


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ModelNotFoundError, match="no-such-file"):
        Engine.from_config(EngineConfig(model="./no-such-file.gguf"))
    with pytest.raises(ModelNotFoundError, match="no-such-file"):
        WorkerEngine(EngineConfig(model="./no-such-file.gguf"))
