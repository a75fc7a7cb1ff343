"""SGLang's offline API over a fake backend, and over an engine with a tiny model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.backends import offline, offline_async
from ramet.errors import DeadlineError, InvalidRequestError, UnsupportedFeatureError
from ramet.runtime.protocol import Event, GenerateRequest, Request, Text, TokenIds
from tests.models import write_model


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake(lambda prompt, name: f"[{prompt}]")


def sent(fake: ramet.Fake) -> list[GenerateRequest]:
    return [request for request in fake.requests if isinstance(request, GenerateRequest)]


def test_one_prompt_gives_a_dict_in_sglangs_layout(fake: ramet.Fake) -> None:
    answer = offline.generate(fake, "abc", {"max_new_tokens": 8, "temperature": 0}, rid="mine")
    assert (answer["text"], answer["output_ids"]) == ("[abc]", list(b"[abc]"))
    meta = answer["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", 3, 5)
    assert meta["finish_reason"]["type"] == "stop"
    assert {"cached_tokens", "e2e_latency"} <= set(meta)


def test_list_of_prompts_gives_a_list_in_order(fake: ramet.Fake) -> None:
    answers = offline.generate(fake, ["a", "b"], [{"n": 1}, {"stop": "]"}], rid="r")
    assert [answer["text"] for answer in answers] == ["[a]", "[b"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["r_0", "r_1"]
    assert offline.generate(fake, []) == []


def test_input_ids_are_sent_as_they_are(fake: ramet.Fake) -> None:
    assert offline.generate(fake, input_ids=[97, 98])["text"] == "[ab]"
    answers = offline.generate(fake, input_ids=[[97], [98]])
    assert [answer["text"] for answer in answers] == ["[a]", "[b]"]
    assert sent(fake)[0].prompt == (TokenIds.of([97, 98]),)


def test_special_tokens_of_a_prompt_are_meant(fake: ramet.Fake) -> None:
    offline.generate(fake, "<|im_start|>")
    assert sent(fake)[0].prompt == (Text("<|im_start|>", parse_special=True),)


def test_sampling_parameters_and_options_reach_the_request(fake: ramet.Fake) -> None:
    offline.generate(
        fake,
        "a",
        {"sampling_seed": 7, "top_k": 3, "regex": r"\[a\]", "json_schema": "", "min_p": None},
        priority=2,
        cache_salt="tenant",
        timeout=5.0,
    )
    request = sent(fake)[0]
    assert (request.seed, request.sampling.top_k, request.sampling.max_new_tokens) == (7, 3, 128)
    assert (request.priority, request.cache_salt, request.timeout) == (2, "tenant", 5.0)
    assert request.constraint is not None


def test_stream_gives_all_that_is_there_so_far(fake: ramet.Fake) -> None:
    pieces = list(offline.generate(fake, "abcdef", stream=True))
    texts = [piece["text"] for piece in pieces]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert [piece["meta_info"]["finish_reason"] is None for piece in pieces[-2:]] == [True, False]
    assert texts[-1] == "[abcdef]"


def test_stream_of_several_says_whose_a_piece_is(fake: ramet.Fake) -> None:
    last: dict[int, str] = {}
    for piece in offline.generate(fake, ["a", "b"], stream=True):
        last[piece["index"]] = piece["text"]
    assert last == {0: "[a]", 1: "[b]"}


def test_reader_that_leaves_a_stream_ends_the_request() -> None:
    fake = ramet.Fake(lambda prompt, name: "x" * 100, delay=30, stream_chunks=1000)
    pieces = offline.generate(fake, "a", stream=True)
    next(pieces)
    pieces.close()
    assert fake.num_running == 0


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"sampling_params": {"temprature": 1}}, TypeError, "did you mean 'temperature'"),
        ({"sampling_params": {"temperature": -1}}, InvalidRequestError, "temperature"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, TypeError, "regex and ebnf"),
        ({"sampling_params": {"sampling_seed": -1}}, InvalidRequestError, "sampling_seed"),
        ({"sampling_params": [{}]}, InvalidRequestError, "1 sampling_params for 1 prompts"),
        ({"sampling_params": "hot"}, TypeError, "must be a dict"),
        (
            {"sampling_params": {"spaces_between_special_tokens": False}},
            UnsupportedFeatureError,
            "spaces_between",
        ),
        ({"streem": True}, TypeError, "did you mean 'stream'"),
        ({"image_data": "x"}, UnsupportedFeatureError, "image_data"),
        ({"top_logprobs_num": 2}, InvalidRequestError, "return_logprob"),
        ({"input_ids": [1]}, InvalidRequestError, "either a prompt or input_ids"),
        ({"rid": ["a"]}, InvalidRequestError, "rid"),
        ({"timeout": -1}, InvalidRequestError, "timeout"),
    ],
)
def test_bad_argument_is_refused_before_any_call(
    fake: ramet.Fake, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        offline.generate(fake, "a", **arguments)
    assert fake.requests == []


def test_doubled_ids_and_different_numbers_of_samples_are_refused(fake: ramet.Fake) -> None:
    with pytest.raises(InvalidRequestError, match="rid"):
        offline.generate(fake, ["a", "b"], rid=["x", "x"])
    with pytest.raises(InvalidRequestError, match="n must be the same"):
        offline.generate(fake, ["a", "b"], [{"n": 1}, {"n": 2}])


def test_failure_raises_and_ends_the_others() -> None:
    def answer(prompt: str, name: str) -> str:
        if prompt == "b":
            raise RuntimeError("out of luck")
        return "x"

    fake = ramet.Fake(answer, delay=0.05)
    with pytest.raises(RuntimeError, match="out of luck"):
        offline.generate(fake, ["a", "b", "c"])
    assert fake.num_running == 0


def test_time_limit_ends_the_wait_even_of_a_backend_that_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(ramet.Fake):
        def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
            pass

    monkeypatch.setattr("ramet.backends.calls.ANSWER_SECONDS", 0.0)
    with pytest.raises(DeadlineError):
        offline.generate(Silent(), "a", timeout=0.01)


def test_asyncio_gives_the_same(fake: ramet.Fake) -> None:
    async def main() -> tuple[Any, list[str]]:
        both = await offline_async.async_generate(fake, ["a", "b"])
        stream = await offline_async.async_generate(fake, "abcdef", stream=True)
        return [a["text"] for a in both], [piece["text"] async for piece in stream]

    texts, pieces = asyncio.run(main())
    assert texts == ["[a]", "[b]"]
    assert pieces[-1] == "[abcdef]"
    assert len(pieces) > 2


def test_cancelled_task_ends_its_request() -> None:
    fake = ramet.Fake(lambda prompt, name: "x", delay=30)

    async def main() -> None:
        task = asyncio.create_task(offline_async.async_generate(fake, "a"))
        while not fake.num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert fake.num_running == 0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ramet.Engine]:
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny")
    with ramet.Engine(folder, process="thread", dtype="float32", max_total_tokens=2000) as engine:
        yield engine


def test_engine_answers_alike_in_every_way(engine: ramet.Engine) -> None:
    params = {"max_new_tokens": 6, "temperature": 0.7, "sampling_seed": 3}
    alone = engine.generate("The quick brown fox", params)
    both = engine.generate(["The quick brown fox", "A tree"], params)
    streamed = list(engine.generate("The quick brown fox", params, stream=True))[-1]
    awaited = asyncio.run(engine.async_generate("The quick brown fox", params))
    assert alone["text"] == both[0]["text"] == streamed["text"] == awaited["text"]
    assert alone["output_ids"] == both[0]["output_ids"] == streamed["output_ids"]
    assert both[0]["meta_info"]["cached_tokens"] > 0


def test_engine_finishes_by_length(engine: ramet.Engine) -> None:
    answer = engine.generate("A tree", {"max_new_tokens": 2, "ignore_eos": True})
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_log_probabilities_are_in_sglangs_layout(engine: ramet.Engine) -> None:
    params = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    prompt = "The quick brown fox"
    meta = engine.generate(
        prompt,
        params,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        token_ids_logprob=[3],
        return_text_in_logprobs=True,
    )["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None
    assert "".join(text for _, _, text in meta["input_token_logprobs"]) == prompt
    assert len(meta["output_token_logprobs"]) == meta["output_token_logprobs_length"] == 3
    for own, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert own == top[0]
        assert len(top) == 2
    assert [[entry[1] for entry in row] for row in meta["output_token_ids_logprobs"]] == [[3]] * 3
    assert meta["input_token_ids_logprobs"][0] is None
    plain = engine.generate(prompt, params, return_logprob=True)["meta_info"]
    assert plain["input_token_logprobs"] == []
    assert plain["output_token_logprobs"][0][2] is None


def test_samples_of_one_prompt_are_a_list(engine: ramet.Engine) -> None:
    params = {"max_new_tokens": 4, "n": 3, "sampling_seed": 1, "ignore_eos": True}
    answers = engine.generate("A tree", params)
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1
    streamed = list(engine.generate("A tree", params, stream=True))
    last = {piece["index"]: piece["text"] for piece in streamed}
    assert [last[index] for index in range(3)] == [answer["text"] for answer in answers]


def test_calls_of_many_threads_do_not_meet(engine: ramet.Engine) -> None:
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        params = {"max_new_tokens": 4, "temperature": 0}
        answers[number] = engine.generate(f"Question {number}", params)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = engine.generate(
        [f"Question {n}" for n in range(4)], {"max_new_tokens": 4, "temperature": 0}
    )
    assert [answers[n]["text"] for n in range(4)] == [answer["text"] for answer in again]


def test_model_folder_may_be_a_path(tmp_path: Path, engine: ramet.Engine) -> None:
    assert "tiny" in str(engine.info()["model"])
