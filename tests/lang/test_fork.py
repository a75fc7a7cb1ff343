"""Fork, join and copy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramState
from ramet.errors import ForkEndedError, GenerationError, InvalidRequestError, ProgramError
from ramet.runtime.protocol import Text


def test_every_branch_begins_with_the_whole_parent_text() -> None:  # F46
    @ramet.function
    def program(s: ProgramState, count: int) -> list[str]:
        s += "Start " + ramet.gen("p", max_tokens=16)
        group = s.fork(count)
        for branch in group:
            branch += " -> " + ramet.gen("c", max_tokens=2)
        group.join()
        s += ", ".join(s["c"])
        return [branch.text() for branch in group]

    fake = ramet.Fake({"p": "parent", "c": lambda prompt, name: f"{len(prompt)}"})
    for repetition in range(50):
        state = program(count=1 if repetition % 10 == 0 else 8, backend=fake)
        assert all(text.startswith("Start parent -> ") for text in state.ret_value)
        assert state["c"] == ["16"] * len(state.ret_value)


def test_branches_run_at_the_same_time_and_join_in_branch_order() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(5)
        group += lambda i: f"{i}:" + ramet.gen("x")
        group.join()

    state = program(
        backend=ramet.Fake({"x": lambda prompt, name: prompt * 2}, delay=0.3), timeout=1.2
    )
    assert state["x"] == [f"{i}:{i}:" for i in range(5)]


def test_children_start_without_waiting_for_the_parent() -> None:
    @ramet.function
    def program(s: ProgramState) -> bool:
        s += ramet.gen("slow")
        group = s.fork(2)
        group += ramet.gen("x")
        is_early = "x" in group[0] and s._stream.cursor == 1
        group.join()
        return is_early

    assert program(backend=ramet.Fake({"slow": "-", "x": "+"}, delay=0.3)).ret_value is True


def test_group_appends_text() -> None:
    @ramet.function
    def program(s: ProgramState) -> list[str]:
        group = s.fork(3)
        group += "text "
        group += ["a", "b", "c"]
        group[0] += "!"
        group[1:] += "?"
        return [branch.text() for branch in group]

    assert program(backend=ramet.Fake()).ret_value == ["text a!", "text b?", "text c?"]


def test_group_has_length_iteration_and_slices() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(4)
        assert len(group) == 4
        assert [branch is group[i] for i, branch in enumerate(group)] == [True] * 4
        assert len(group[1:3]) == 2
        assert group[-1] is group[3]
        with pytest.raises(IndexError):
            group[4]
        with pytest.raises(TypeError, match="replaced"):
            group[0] = group[1]
        with pytest.raises(InvalidRequestError, match="3 items for 4"):
            group += ["a", "b", "c"]

    program(backend=ramet.Fake())


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
def test_fork_needs_a_positive_number(size: object) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s.fork(size)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="at least 1"):
        program(backend=ramet.Fake())


def test_children_see_variables_and_meta_info_of_the_parent() -> None:
    @ramet.function
    def program(s: ProgramState) -> list[object]:
        s += ramet.gen("x")
        s["y"] = 4
        child = s.fork(1)[0]
        return [child["x"], child["y"], child.get_meta_info("x")["completion_tokens"]]

    assert program(backend=ramet.Fake({"x": "abc"})).ret_value == ["abc", 4, 3]


def test_parent_variables_bound_after_the_fork_are_not_seen() -> None:
    @ramet.function
    def program(s: ProgramState) -> bool:
        child = s.fork(1)[0]
        s["late"] = 1
        return "late" in child

    assert program(backend=ramet.Fake()).ret_value is False


def test_name_that_the_parent_had_is_joined_too() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        for _ in range(2):
            group = s.fork(2)
            group += lambda i: f"{i}" + ramet.gen("x")
            group.join()

    fake = ramet.Fake({"x": lambda prompt, name: prompt})
    assert program(backend=fake)["x"] == ["0", "1"]


def test_failed_branch_keeps_its_place() -> None:
    @ramet.function
    def program(s: ProgramState) -> list[str]:
        group = s.fork(3)
        group += lambda i: f"{i}" + ramet.gen("x")
        group.join()
        assert len(s["x"]) == 3
        with pytest.raises(GenerationError, match="no answer"):
            s["x"][1]
        with pytest.raises(GenerationError, match="no answer"):
            ", ".join(s["x"])
        return [s["x"][0], s["x"][2]]

    fake = ramet.Fake({"x": lambda p, n: RuntimeError("no answer") if p == "1" else p})
    assert program(backend=fake).ret_value == ["0", "2"]


def test_failed_branch_that_nobody_reads_fails_the_run() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(3)
        group += lambda i: f"{i}" + ramet.gen("x")
        group.join()

    fake = ramet.Fake({"x": lambda p, n: RuntimeError("no answer") if p == "1" else p})
    with pytest.raises(GenerationError, match="no answer"):
        program(backend=fake)


def test_policy_none_puts_none() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(3)
        group += lambda i: f"{i}" + ramet.gen("x")
        group[0]["only"] = 1
        group.join(on_error="none")

    fake = ramet.Fake({"x": lambda p, n: RuntimeError("no answer") if p == "1" else p})
    state = program(backend=fake)
    assert state["x"] == ["0", None, "2"]
    assert state["only"] == [1, None, None]


def test_place_of_a_branch_that_did_not_bind_raises_when_read() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(2)
        group[0]["only"] = 1
        group.join()

    places = program(backend=ramet.Fake())["only"]
    assert places[0] == 1
    with pytest.raises(KeyError, match="branch 1 of the fork did not bind 'only'"):
        places[1]


def test_joined_branches_are_ended() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(2)
        group += ramet.gen("x")
        group.join()
        assert group[0]["x"] == "-"
        with pytest.raises(ForkEndedError):
            group[0] += "more"
        with pytest.raises(ForkEndedError):
            group[0].fork(1)
        with pytest.raises(ForkEndedError):
            group.join()
        s += "more"

    assert program(backend=ramet.Fake({"x": "-"})).text() == "more"


def test_join_concate_and_append_makes_one_literal_run() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "start "
        group = s.fork(2)
        group += lambda i: f"<{i}:" + ramet.gen("x") + ">"
        group.join("concate_and_append")
        s += " end" + ramet.gen("y")

    fake = ramet.Fake({"x": "-", "y": "."})
    state = program(backend=fake)
    assert state.text() == "start <0:-><1:-> end."
    assert "x" not in state


def test_unknown_join_mode_is_refused() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s.fork(1).join("gather")

    with pytest.raises(ValueError, match="gather_variable"):
        program(backend=ramet.Fake())


def test_copy_is_one_branch_that_is_joined() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "a"
        with s.copy() as draft:
            draft += "b" + ramet.gen("x")
        s += "c"

    state = program(backend=ramet.Fake({"x": "-"}))
    assert state.text() == "ac"
    assert state["x"] == ["-"]


def test_failed_parent_fails_its_branches_once() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")
        group = s.fork(2)
        group += ramet.gen("y")
        with pytest.raises(GenerationError, match="'x'"):
            group[1]["y"]
        with pytest.raises(GenerationError, match="'x'"):
            s["x"]

    fake = ramet.Fake({"x": RuntimeError("boom"), "y": "-"})
    program(backend=fake)
    assert [r.label for r in fake.requests] == ["x"]


def test_forks_of_forks() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        outer = s.fork(2)
        for i, branch in enumerate(outer):
            inner = branch.fork(2)
            inner += [f"{i}{j}" + ramet.gen("x") for j in range(2)]
            inner.join()
        outer.join()

    fake = ramet.Fake({"x": lambda prompt, name: prompt})
    state = program(backend=fake)
    assert state["x"] == [["00", "01"], ["10", "11"]]
    assert state.usage.generated_tokens == 8


def test_unnamed_gens_of_branches_do_not_collide() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen()
        group = s.fork(2)
        group += ramet.gen()
        group.join()
        s += ramet.gen()

    state = program(backend=ramet.Fake(lambda prompt, name: name))
    assert state["gen_0"] == "gen_0"
    assert state["gen_1"] == ["gen_1", "gen_1"]
    assert state["gen_2"] == "gen_2"


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(5)), st.lists(st.text(max_size=3), min_size=5, max_size=5))
def test_join_order_is_branch_order_whatever_order_they_are_written_in(
    order: list[int], texts: list[str]
) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(5)
        for index in order:
            group[index] += texts[index] + ramet.gen("x")
        group.join()

    fake = ramet.Fake({"x": lambda prompt, name: prompt + "!"})
    assert program(backend=fake)["x"] == [text + "!" for text in texts]


def test_empty_part_of_a_group_can_be_joined() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s.fork(2)[2:].join()
        s += "text"

    assert program(backend=ramet.Fake()).text() == "text"


def test_special_text_of_branches_stays_special() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(2)
        group += "a" + ramet.special("<|im_end|>") + ramet.gen("x")
        group.join("concate_and_append")
        s += ramet.gen("y")

    fake = ramet.Fake({"x": "-", "y": "."})
    program(backend=fake)
    end = Text("<|im_end|>", parse_special=True)
    assert fake.requests[-1].prompt == (Text("a"), end, Text("-a"), end, Text("-"))


def test_branches_that_cannot_be_appended_can_still_be_joined() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(2)
        group += ramet.user("q") + ramet.assistant(ramet.gen("x"))
        with pytest.raises(ProgramError, match=r"use join\(\)"):
            group.join("concate_and_append")
        with pytest.raises(InvalidRequestError, match="on_error='none'"):
            group.join("concate_and_append", on_error="none")
        group.join()

    assert program(backend=ramet.Fake({"x": "-"}))["x"] == ["-", "-"]


@pytest.mark.parametrize("answer", ["-", RuntimeError("boom")])
def test_forks_of_forks_of_forks_without_end(answer: str | Exception) -> None:
    @ramet.function
    def program(s: ProgramState) -> str:
        s += ramet.gen("x")
        for _ in range(1000):
            s = s.fork(1)[0]
        s += ramet.gen("y")
        return str(s["y"])

    state = program(backend=ramet.Fake({"x": answer, "y": "+"}), on_error="return", timeout=20)
    assert state.ret_value == "+" if answer == "-" else "boom" in str(state.error())
