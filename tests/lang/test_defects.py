"""Defects of SGLang's language that Ramet does not have: one test for each, by behaviour."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ramet
from ramet.errors import GenerationError, InvalidRequestError


def echo(prompt: str, name: str) -> str:
    return f"<{name}>"


@ramet.function
def ask(s: ramet.ProgramState, question: str) -> None:
    s += question + ramet.gen("answer")


# -- functions and batches


def test_bind_keeps_the_number_of_speculated_tokens() -> None:
    program = ramet.function(ask.func, num_api_spec_tokens=8)
    assert program.bind(question="q").num_api_spec_tokens == 8


def test_argument_of_the_call_wins_over_a_bound_one() -> None:
    state = ask.bind(question="bound")(question="given", backend=ramet.Fake(echo))
    assert state.text().startswith("given")


def test_parameter_named_like_an_option_gets_its_argument() -> None:
    @ramet.function
    def program(s: ramet.ProgramState, n: int, stop: str, temperature: str, stream: str) -> str:
        return f"{n} {stop} {temperature} {stream}"

    state = program(n=3, stop="x", temperature="warm", stream="river", backend=ramet.Fake())
    assert state.ret_value == "3 x warm river"


def test_body_of_a_batch_runs_once_for_each_row() -> None:
    calls: list[str] = []

    @ramet.function
    def program(s: ramet.ProgramState, x: str) -> None:
        calls.append(x)
        s += "A constant beginning of more than sixty-four characters, for all of the rows. "
        s += x + ramet.gen("answer")

    program.run_batch([{"x": "a"}, {"x": "b"}], backend=ramet.Fake(echo))
    assert sorted(calls) == ["a", "b"]


def test_argument_that_is_looked_up_in_a_table_fails_no_batch() -> None:
    table = {"a": "first", "b": "second"}

    @ramet.function
    def program(s: ramet.ProgramState, x: str) -> None:
        s += table[x] + ramet.gen("answer")

    states = program.run_batch([{"x": "a"}, {"x": "b"}], backend=ramet.Fake(echo))
    assert [state.text() for state in states] == ["first<answer>", "second<answer>"]
    program.cache(backend=ramet.Fake(echo))


def test_argument_in_an_f_string_does_not_empty_the_constant_beginning() -> None:
    @ramet.function
    def program(s: ramet.ProgramState, x: str) -> None:
        s += "constant"
        s += f" and {x}"

    assert program.cache(backend=ramet.Fake()).prompt_tokens == len("constant")


def test_rows_stay_as_they_are() -> None:
    rows = [{"question": "q"}]
    ask.bind(temperature=0).run_batch(rows, backend=ramet.Fake(echo))
    assert rows == [{"question": "q"}]


# -- gen


def test_unnamed_gens_have_a_place_each() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.gen() + ramet.gen()

    state = program(backend=ramet.Fake(echo))
    assert (state["gen_0"], state["gen_1"]) == ("<gen_0>", "<gen_1>")


def test_empty_choices_never_become_free_text() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        ramet.gen("x", choices=[])


def test_callers_stop_list_never_grows() -> None:
    stop = ["."]

    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.user("q")
        s += ramet.assistant(ramet.gen("a", stop=stop) + ramet.gen("b", stop=stop, dtype=int))

    for _ in range(3):
        program(backend=ramet.Fake({"a": "x", "b": "1"}), stop=stop)
    assert stop == ["."]


# -- select


@pytest.mark.parametrize("prompt", ["Is it so? Answer::", "Two lines\n\n"])
@pytest.mark.parametrize(
    "method",
    [
        ramet.token_length_normalized,
        ramet.greedy_token_selection,
        ramet.unconditional_likelihood_normalized,
    ],
    ids=lambda m: m.__name__,
)
def test_only_an_options_own_tokens_are_scored(prompt: str, method: Any) -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += prompt + ramet.select("x", ["yes", "no"], choices_method=method)

    state = program(backend=ramet.Fake({"x": "no"}))
    assert state["x"] == "no"
    choices = state.get_meta_info("x")["choices"]
    assert [len(choice["logprobs"]) for choice in choices] == [len("yes"), len("no")]


# -- fork and join


def test_every_branch_starts_from_the_whole_text_and_shares_it() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += "A trunk that is still queued. "
        s += ramet.gen("head")
        forks = s.fork(3)
        forks += "branch " + ramet.gen("x")
        forks.join()

    fake = ramet.Fake(echo, delay=0.01)
    program(backend=fake)
    prompts = [fake.render(request.prompt) for request in fake.requests[1:]]
    assert prompts == ["A trunk that is still queued. <head>branch "] * 3


def test_text_can_be_appended_to_all_branches() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> list[str]:
        forks = s.fork(2)
        forks += "text"
        return [fork.text() for fork in forks]

    assert program(backend=ramet.Fake()).ret_value == ["text", "text"]


def test_join_drops_no_name_that_the_parent_had() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.gen("x")
        for _ in range(2):
            forks = s.fork(2)
            forks += lambda i: str(i) + ramet.gen("x")
            forks.join()

    fake = ramet.Fake(lambda prompt, name: prompt[-1:] or "-")
    assert program(backend=fake)["x"] == ["0", "1"]


def test_failed_branch_keeps_its_place_in_the_joined_list() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        forks = s.fork(3)
        forks += lambda i: str(i) + ramet.gen("x")
        forks.join()

    def answer(prompt: str, name: str) -> str:
        if prompt == "1":
            raise RuntimeError("no luck")
        return prompt

    state = program(backend=ramet.Fake(answer), on_error="return")
    values = state["x"]
    assert (len(values), values[0], values[2]) == (3, "0", "2")
    with pytest.raises(GenerationError, match="no luck"):
        values[1]


def test_joined_texts_are_appended_without_a_server() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        forks = s.fork(2)
        forks += lambda i: f"part {i}; "
        forks.join("concate_and_append")

    assert program(backend=ramet.Fake()).text() == "part 0; part 1; "


# -- tracing


def test_program_that_forks_and_joins_can_be_traced() -> None:
    @ramet.function
    def program(s: ramet.ProgramState, question: str) -> None:
        s += question
        forks = s.fork(2)
        forks += ramet.gen("x")
        forks.join()
        s += " and ".join(s["x"])

    graph = program.trace()
    kinds = [node.kind for node in graph.nodes]
    assert kinds == ["text", "fork", "gen", "gen", "join", "text"]
    assert graph.nodes[-1].details["text"] == "{x} and {x}"


def test_traces_in_many_threads_do_not_meet() -> None:
    graphs: dict[int, str] = {}

    def trace(number: int) -> None:
        graphs[number] = str(ask.trace(f"question {number}"))

    threads = [threading.Thread(target=trace, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"'question {number}'" in graphs[number] for number in range(8))


# -- errors


def test_reading_a_failed_variable_raises_its_cause() -> None:
    state = ask("q", backend=ramet.Fake({"answer": RuntimeError("out of luck")}), on_error="return")
    with pytest.raises(GenerationError, match="out of luck"):
        state["answer"]


def test_nothing_hangs_after_a_failure() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.gen("a")
        try:
            s["a"]
        except GenerationError:
            s += "more" + ramet.gen("b")

    state = program(
        backend=ramet.Fake({"a": RuntimeError("out of luck"), "b": "x"}), on_error="return"
    )
    for wait in (state.text, state.sync, state.messages, lambda: state["b"]):
        with pytest.raises(GenerationError, match="out of luck"):
            wait()
