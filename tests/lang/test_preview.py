"""program.preview."""

import ramet
from ramet import ProgramState


def test_preview_shows_roles_and_placeholders_without_a_model() -> None:
    @ramet.function
    def program(s: ProgramState, q: str) -> None:
        s += ramet.system("Be brief.") + ramet.user(q) + ramet.assistant(ramet.gen("answer"))

    assert program.preview(q="Why?") == "[system] Be brief.\n[user] Why?\n[assistant] {answer}"
    assert program.preview("Why?", temperature=0).endswith("{answer}")


def test_preview_ends_at_the_first_read_of_an_unknown_value() -> None:
    ran = []

    @ramet.function
    def program(s: ProgramState) -> None:
        s += "a" + ramet.gen("x")
        s["known"] = 1
        ran.append(s["known"])
        try:
            ran.append(s["x"])
        except Exception:  # noqa: BLE001 what careless programs do
            ran.append("handled")
        ran.append("after")

    assert program.preview() == "a{x}"
    assert ran == [1]


def test_preview_passes_forks_and_joins() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(2)
        group += "b" + ramet.gen("x")
        group.join()
        s += "c"
        s += str(s["x"])
        s += "d"

    expected = "├─ branch 0\n│  b{x}\n├─ branch 1\n│  b{x}\nc"
    assert program.preview() == expected


def test_preview_reads_text_that_is_known() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "a"
        s += s.text() + "b"

    assert program.preview() == "aab"


def test_preview_ends_at_a_nested_program() -> None:
    @ramet.function
    def inner(s: ProgramState) -> None:
        raise AssertionError("must not run")

    @ramet.function
    def outer(s: ProgramState) -> None:
        s += "a"
        inner()
        s += "b"

    @ramet.function
    def batches(s: ProgramState) -> None:
        s += "a"
        inner.run_batch([{}, {}])
        s += "b"

    assert outer.preview() == "a"
    assert batches.preview() == "a"


def test_preview_takes_the_seed() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += f"seed {s.seed}"

    assert program.preview(seed=5) == "seed 5"
