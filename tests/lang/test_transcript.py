"""What states look like."""

import pytest

import ramet
from ramet import ProgramState


@ramet.function
def program(s: ProgramState) -> None:
    s += ramet.system("Be <brief>.") + ramet.user("q") + ramet.assistant("A: " + ramet.gen("x"))
    group = s.fork(2)
    for i, branch in enumerate(group):
        branch += ramet.user(f"why {i}") + ramet.assistant(ramet.gen("y"))
    group.join()
    s += ramet.user("end")


@pytest.fixture
def state() -> ProgramState:
    return program(backend=ramet.Fake({"x": "<yes>", "y": "so"}))


def test_generated_text_is_marked_in_print(state: ProgramState) -> None:
    assert str(state) == "\n".join(
        [
            "[system] Be <brief>.",
            "[user] q",
            "[assistant] A: «<yes>»",
            "├─ branch 0",
            "│  [user] why 0",
            "│  [assistant] «so»",
            "├─ branch 1",
            "│  [user] why 1",
            "│  [assistant] «so»",
            "[user] end",
        ]
    )


def test_html_is_escaped_and_marked(state: ProgramState) -> None:
    html = state._repr_html_()
    assert '<mark title="x">&lt;yes&gt;</mark>' in html
    assert "Be &lt;brief&gt;." in html


def test_printing_does_not_wait() -> None:
    @ramet.function
    def slow(s: ProgramState) -> str:
        s += "a" + ramet.gen("x")
        return str(s)

    assert slow(backend=ramet.Fake({"x": "-"}, delay=0.3)).ret_value == "a{x}"


def test_fork_inside_a_turn_keeps_one_message() -> None:
    @ramet.function
    def inside(s: ProgramState) -> list[dict[str, str]]:
        with s.assistant():
            s += "a"
            group = s.fork(2)
            group += "b"
            group.join()
            s += "c"
        return group[0].messages()

    state = inside(backend=ramet.Fake())
    assert state.messages() == [{"role": "assistant", "content": "ac"}]
    assert state.ret_value == [{"role": "assistant", "content": "ab"}]


def test_failed_state_can_be_printed() -> None:
    state = program(backend=ramet.Fake({"x": RuntimeError("boom")}), on_error="return")
    assert "A: {x}" in str(state)
    assert "program" in repr(state)


def test_transcript_of_forks_nested_deeper_than_calls_can_be() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        branch = s
        for i in range(1500):
            branch += f"{i} "
            branch = branch.fork(1)[0]

    state = program(backend=ramet.Fake())
    assert str(state).count("├─ branch 0") == 1500
    assert state._repr_html_().count("branch 0") == 1500
