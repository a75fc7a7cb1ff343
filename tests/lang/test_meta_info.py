"""Several samples, log-probabilities and the ways to read a variable."""

from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError, InvalidRequestError
from ramet.runtime.protocol import GenerateRequest, sample_seed


@ramet.function
def ask(s: ProgramState, **options: Any) -> None:
    s += "ab" + ramet.gen("x", **options)


@ramet.function
def one_gen(s: ProgramState, gen: Any) -> None:
    s += gen


def request_of(fake: ramet.Fake) -> GenerateRequest:
    (request,) = fake.requests
    assert isinstance(request, GenerateRequest)
    return request


def test_samples_are_a_list_and_the_text_goes_on_with_the_first() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "Q:" + ramet.gen("x", n=3)
        s += "." + ramet.gen("y")

    fake = ramet.Fake({"x": ["one", "two", "three"], "y": "end"})
    state = program(backend=fake)
    assert state["x"] == state.raw("x") == ["one", "two", "three"]
    assert state.text() == "Q:one.end"
    assert str(state) == "Q:«one».«end»"
    assert state.usage.generated_tokens == len("onetwothreeend")


def test_samples_have_their_seeds_and_reasons() -> None:
    fake = ramet.Fake({"x": ["a.", "b"]})
    info = ask(n=2, stop=".", backend=fake, seed=5).get_meta_info("x")
    assert [sample["finish_reason"]["matched"] for sample in info["samples"]] == [".", 257]
    first = request_of(fake).seed
    assert [sample["seed"] for sample in info["samples"]] == [first, sample_seed(first, 1)]
    assert info["seed"] == first
    assert info["finish_reason"] == info["samples"][0]["finish_reason"]


def test_one_sample_has_no_list() -> None:
    assert "samples" not in ask(backend=ramet.Fake({"x": "a"})).get_meta_info("x")


def test_chunks_are_those_of_the_first_sample() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", n=2)

    state = program.run(stream=True, backend=ramet.Fake({"x": ["hello", "HELLO there"]}))
    assert "".join(state.text_iter("x")) == "hello"
    assert state["x"] == ["hello", "HELLO there"]


def test_samples_are_joined_and_scoped_by_the_first() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        with s.var_scope("all"):
            s += "<" + ramet.gen("x", n=2) + ">"
        forks = s.fork(2)
        forks += ramet.gen("y", n=2)
        forks.join("concate_and_append")

    state = program(backend=ramet.Fake({"x": ["a", "b"], "y": ["c", "d"]}))
    assert state["all"] == "<a>"
    assert state.text() == "<a>cc"


def test_reasoning_of_each_sample_is_apart() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.separate_reasoning(ramet.gen("x", n=2), model_type="qwen3")

    state = program(backend=ramet.Fake({"x": ["<think>p</think>a", "<think>q</think>b"]}))
    assert state["x"] == ["a", "b"]
    assert state["x_reasoning_content"] == ["p", "q"]


def test_output_logprobs_are_in_sglangs_layout() -> None:
    info = ask(return_logprob=True, backend=ramet.Fake({"x": "xy"})).get_meta_info("x")
    assert info["input_token_logprobs"] == []
    assert info["output_token_logprobs"] == [[-0.125, 120, None], [-0.25, 121, None]]
    assert info["output_token_logprobs_length"] == 2
    assert "output_top_logprobs" not in info


def test_input_logprobs_begin_at_a_position_of_the_whole_prompt() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "abc" + ramet.gen("x") + "d"
        s += ramet.gen("y", return_logprob=True, logprob_start_len=3, return_text_in_logprobs=True)

    info = program(backend=ramet.Fake({"x": "XY", "y": "z"})).get_meta_info("y")
    assert [entry[2] for entry in info["input_token_logprobs"]] == ["X", "Y", "d"]
    assert info["output_token_logprobs"] == [[-0.375, 122, "z"]]


def test_the_first_position_has_no_logprob() -> None:
    options = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    info = ask(**options, backend=ramet.Fake({"x": "c"})).get_meta_info("x")
    assert info["input_token_logprobs"][0] == [None, 97, None]
    assert info["input_top_logprobs"][0] is None
    assert info["input_top_logprobs"][1] == [[-0.125, 0, None]]


def test_top_and_chosen_logprobs() -> None:
    options = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [9, 8]}
    info = ask(**options, backend=ramet.Fake({"x": "c"})).get_meta_info("x")
    assert info["output_top_logprobs"] == [[[-0.125, 0, None], [-0.125, 8, None]]]
    assert info["output_token_ids_logprobs"] == [[[-0.25, 9, None], [-0.125, 8, None]]]
    assert info["input_top_logprobs"] == []


def test_a_run_can_ask_for_all_its_gens() -> None:
    state = ask.run(backend=ramet.Fake({"x": "c"}), return_logprob=True, top_logprobs_num=1)
    assert state.get_meta_info("x")["output_top_logprobs"] == [[[-0.125, 0, None]]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprob_start_len", 0),
        ("top_logprobs_num", 1),
        ("token_ids_logprob", [1]),
        ("return_text_in_logprobs", True),
    ],
)
def test_a_logprob_option_of_a_gen_without_logprobs_is_refused(name: str, value: object) -> None:
    fake = ramet.Fake({"x": "c"})
    with pytest.raises(InvalidRequestError, match=name):
        ask(**{name: value}, backend=fake)
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidRequestError, match=name):
        one_gen(ramet.gen("x", **options), backend=fake)
    assert fake.requests == []
    gen = ramet.gen("x", return_logprob=False)
    assert one_gen(gen, backend=fake, **{name: value})["x"] == "c"
    assert ask.run(**{name: value}, return_logprob=True, backend=fake)["x"] == "c"


def test_get_checks_the_type_that_it_is_given() -> None:
    state = ask(backend=ramet.Fake({"x": "c"}))
    state["number"] = 3
    assert state.get("x", str) == state.get("x") == "c"
    assert state.get("number") == 3
    with pytest.raises(TypeError, match="'number' is int"):
        state.get("number", str)
    wanted: Any = int
    with pytest.raises(TypeError, match="only be str"):
        state.get("x", wanted)


def test_raw_is_for_what_was_generated() -> None:
    state = ask(backend=ramet.Fake({"x": "c"}))
    state["set"] = "by hand"
    assert state.raw("x") == "c"
    with pytest.raises(InvalidRequestError, match="'set' was not generated"):
        state.raw("set")


def test_raw_raises_what_failed() -> None:
    state = ask.run(backend=ramet.Fake({"x": ValueError("no")}), on_error="return")
    with pytest.raises(GenerationError):
        state.raw("x")


def test_append_returns_the_state() -> None:
    @ramet.function
    def program(s: ProgramState) -> bool:
        return s.append("a") is s

    state = program(backend=ramet.Fake())
    assert state.ret_value
    assert state.text() == "a"


def test_an_async_program_reads_in_the_same_ways() -> None:
    @ramet.function
    async def program(s: Any) -> list[Any]:
        s += "ab" + ramet.gen("x")
        counts = [await s.num_tokens(), await s.remaining_tokens()]
        return [await s.get("x", str), await s.raw("x"), *counts]

    assert program(backend=ramet.Fake({"x": "c"})).ret_value == ["c", "c", 3, None]
