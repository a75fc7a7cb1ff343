"""Appending and reading."""

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import (
    GenerationError,
    InvalidRequestError,
    RoleOrderError,
    UndefinedVariableError,
)
from ramet.runtime.protocol import (
    GenerateRequest,
    RoleBegin,
    RoleEnd,
    Text,
    TokenIds,
)


def test_text_and_variables_come_in_program_order() -> None:  # F41
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "A" + ramet.gen("x", max_tokens=2) + "B" + ramet.gen("y", max_tokens=2)
        s += ramet.select("z", ["1", "2"]) + "C"

    state = program(backend=ramet.Fake({"x": "x!", "y": "y!", "z": "2"}))
    assert (state["x"], state["y"], state["z"]) == ("x!", "y!", "2")
    assert state.text() == "Ax!By!2C"


def test_selected_value_is_one_of_the_options_byte_for_byte() -> None:  # F14
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "Is it present?" + ramet.select("p", ["Yes", "No"])
        if s["p"] == "Yes":
            s += " ok"

    assert program(backend=ramet.Fake({"p": "Yes"})).text() == "Is it present?Yes ok"
    assert program(backend=ramet.Fake({"p": "No"})).text() == "Is it present?No"


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (["", " indeed", " indeed so"], ""),
        (["", " indeed", " indeed so"], " indeed so"),
        (["dup", "dup"], "dup"),
        (["only"], "only"),
    ],
)
def test_empty_doubled_and_single_options_are_fine(options: list[str], answer: str) -> None:  # F15
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "Is it" + ramet.select("x", options)

    state = program(backend=ramet.Fake({"x": answer}))
    assert state["x"] in options
    assert state.text() == "Is it" + state["x"]


def test_variable_is_there_as_soon_as_its_gen_was_appended() -> None:
    @ramet.function
    def program(s: ProgramState) -> tuple[bool, bool]:
        before = "x" in s
        s += ramet.gen("x")
        return before, "x" in s

    assert program(backend=ramet.Fake({"x": "1"}, delay=0.02)).ret_value == (False, True)


def test_unnamed_gens_are_numbered_and_do_not_overwrite() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen() + ramet.gen("x") + ramet.gen() + ramet.select(choices=["c"])

    state = program(backend=ramet.Fake({"gen_0": "a", "x": "-", "gen_1": "b", "gen_2": "c"}))
    assert [state[f"gen_{i}"] for i in range(3)] == ["a", "b", "c"]


def test_binding_again_replaces() -> None:
    @ramet.function
    def program(s: ProgramState) -> list[str]:
        s += ramet.gen("x")
        first = s["x"]
        s += ramet.gen("x")
        return [first, s["x"]]

    assert program(backend=ramet.Fake({"x": ["a", "b"]})).ret_value == ["a", "b"]


def test_setting_a_variable_leaves_the_text() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "text"
        s["x"] = 5
        s.set_var("y", [1])

    state = program(backend=ramet.Fake())
    assert (state["x"], state.get_var("y"), state.get("x")) == (5, [1], 5)
    assert state.text() == "text"
    assert state.get_meta_info("x") == {}


def test_undefined_variable_names_near_ones_and_the_line() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("answer")
        s["anwser"]

    with pytest.raises(
        UndefinedVariableError, match=r"line \d+: .*'anwser'; did you mean 'answer'"
    ):
        program(backend=ramet.Fake({"answer": "x"}))
    with pytest.raises(KeyError):
        program(backend=ramet.Fake({"answer": "x"}))


def test_state_takes_lists_of_expressions() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ["a", ramet.gen("x"), ("b",)]

    assert program(backend=ramet.Fake({"x": "-"})).text() == "a-b"


def test_bad_item_appends_nothing() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        with pytest.raises(TypeError, match="cannot append 3"):
            s += ["a", 3]
        with pytest.raises(RoleOrderError):
            s += "b" + ramet.user(ramet.user("c"))
        s += ramet.user("d")

    state = program(backend=ramet.Fake())
    assert state.messages() == [{"role": "user", "content": "d"}]


def test_nested_role_and_wrong_end_are_refused() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.user_begin()
        with pytest.raises(RoleOrderError, match="inside 'user'"):
            s += ramet.system("x")
        with pytest.raises(RoleOrderError, match="'user' is open"):
            s += ramet.assistant_end()
        s += ramet.user_end()
        with pytest.raises(RoleOrderError, match="no role is open"):
            s += ramet.user_end()

    program(backend=ramet.Fake())


def test_role_blocks_and_calls_on_the_state() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s.system("be brief")
        with s.user():
            s += "hi "
            s += "there"
        with s.assistant():
            s += ramet.gen("x")

    assert program(backend=ramet.Fake({"x": "hello"})).messages() == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": "hello"},
    ]


def test_prompt_is_known_ids_then_one_open_run() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "ab"
        s += "cd" + ramet.gen("x")
        s += "e"
        s += "f" + ramet.gen("y")

    fake = ramet.Fake({"x": "-", "y": "+"})
    program(backend=fake)
    assert [r.prompt for r in fake.requests] == [
        (Text("abcd"),),
        (TokenIds.of(list(b"abcd-")), Text("ef")),
    ]


def test_role_markers_carry_the_role_before_and_the_generation_prompt() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.user("q") + ramet.assistant(ramet.gen("x"))
        s += ramet.user("r") + ramet.assistant("Sure: " + ramet.gen("y"))

    fake = ramet.Fake({"x": "-", "y": "+"})
    program(backend=fake)
    assert fake.requests[0].prompt == (
        RoleBegin("user"),
        Text("q"),
        RoleEnd("user"),
        RoleBegin("assistant", "user", generate=True),
    )
    assert fake.requests[1].prompt[1:] == (
        RoleEnd("assistant"),
        RoleBegin("user", "assistant"),
        Text("r"),
        RoleEnd("user"),
        RoleBegin("assistant", "user"),
        Text("Sure: "),
    )


def test_stop_string_opens_the_next_run_after_it() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", stop=["\n", "."]) + "!"

    state = program(backend=ramet.Fake({"x": "one.\ntwo"}))
    assert state["x"] == "one"
    assert state.text() == "one!"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "."}


def test_gen_options_win_over_the_run_s() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x") + ramet.gen("y", 7, temperature=0.5) + ramet.gen("z", regex="-*")

    fake = ramet.Fake(lambda prompt, name: "--")
    program(backend=fake, temperature=0, max_tokens=9)
    sampling = [r.sampling for r in fake.requests if isinstance(r, GenerateRequest)]
    assert [p.temperature for p in sampling] == [0, 0.5, 0]
    assert [p.max_new_tokens for p in sampling] == [9, 7, None]


def test_options_that_do_not_go_together_are_refused_at_the_line() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", min_tokens=50)

    with pytest.raises(InvalidRequestError, match="min_new_tokens=50"):
        program(backend=ramet.Fake(), max_tokens=5)


def test_untyped_gens_default_to_128_tokens() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")

    fake = ramet.Fake({"x": "-"})
    program(backend=fake)
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert request.sampling.max_new_tokens == 128


def test_meta_info_of_a_gen() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "abc" + ramet.gen("x")

    info = program(backend=ramet.Fake({"x": "de"}), seed=3).get_meta_info("x")
    assert {"id", "seed", "queue_time", "first_token_latency", "e2e_latency"} < info.keys()
    assert info["prompt_tokens"] == info["cached_tokens"] + info["computed_tokens"] == 3
    assert info["completion_tokens"] == 2
    assert info["recomputed_tokens"] == 0


def test_meta_info_of_a_select_has_the_evidence() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "pick " + ramet.select("x", ["apple", "apricot"])

    info = program(backend=ramet.Fake({"x": "apricot"})).get_meta_info("x")
    assert info["finish_reason"] == {"type": "select", "matched": None}
    assert info["choices_method"] == "token_length_normalized"
    assert info["trunk_text"] == "pick ap"
    assert [choice["text"] for choice in info["choices"]] == ["ple", "ricot"]
    assert info["choices"][1]["probability"] == max(c["probability"] for c in info["choices"])
    assert sum(choice["probability"] for choice in info["choices"]) == pytest.approx(1)
    assert [len(choice["logprobs"]) for choice in info["choices"]] == [3, 5]


def test_usage_counts_the_state_and_its_branches() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "abc" + ramet.gen("x")
        group = s.fork(2)
        group += ramet.gen("y")
        group.join()

    usage = program(backend=ramet.Fake({"x": "1", "y": "23"})).usage
    assert usage.generated_tokens == 5
    assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens == 3 + 4 + 4
    assert str(usage).startswith("prompt 11 tokens: ")


def test_text_outside_of_roles_is_not_lost_silently() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "stray" + ramet.user("q")

    with pytest.raises(ramet.errors.ProgramError, match="stray"):
        program(backend=ramet.Fake()).messages()


def test_helper_function_continues_the_same_prompt() -> None:
    def ask(s: ProgramState, question: str) -> str:
        s += ramet.user(question) + ramet.assistant(ramet.gen("a"))
        return str(s["a"])

    @ramet.function
    def program(s: ProgramState) -> list[str]:
        return [ask(s, "one"), ask(s, "two")]

    state = program(backend=ramet.Fake({"a": ["1", "2"]}))
    assert state.ret_value == ["1", "2"]
    assert len(state.messages()) == 4


def test_error_carries_state_variable_and_line() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "a"
        s += ramet.gen("x")

    with pytest.raises(GenerationError) as caught:
        program(backend=ramet.Fake({"x": RuntimeError("boom")}))
    assert caught.value.variable == "x"
    assert caught.value.line == program.func.__code__.co_firstlineno + 3
    assert isinstance(caught.value.state, ProgramState)
    assert "boom" in str(caught.value.__cause__)
