"""Programs: arguments, options, nesting, errors of the body."""

import inspect
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError, InvalidRequestError
from ramet.runtime.protocol import GenerateRequest


@ramet.function
def echo(s: ProgramState, question: str, style: str = "plain") -> str:
    """Answer a question."""
    s += f"{style}:{question}" + ramet.gen("answer")
    return style


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake(lambda prompt, name: prompt)


def test_arguments_by_position_and_keyword(fake: ramet.Fake) -> None:
    assert echo("q", backend=fake)["answer"] == "plain:q"
    assert echo.run("q", "loud", backend=fake)["answer"] == "loud:q"
    assert echo(style="soft", question="q", backend=fake).ret_value == "soft"


def test_first_parameter_may_have_any_name(fake: ramet.Fake) -> None:
    @ramet.function
    def program(conversation: ProgramState) -> None:
        conversation += "hi"

    assert program(backend=fake).text() == "hi"


def test_decorator_with_and_without_parentheses(fake: ramet.Fake) -> None:
    @ramet.function()
    def program(s: ProgramState) -> None:
        s += "hi"

    assert program(backend=fake).text() == "hi"


def test_program_keeps_name_and_documentation() -> None:
    assert (echo.name, echo.__name__, echo.__doc__) == ("echo", "echo", "Answer a question.")
    assert "question" in repr(echo)


def test_unknown_argument_names_the_nearest(fake: ramet.Fake) -> None:
    with pytest.raises(TypeError, match="'queston'; did you mean 'question'"):
        echo(queston="q", backend=fake)
    with pytest.raises(TypeError, match="'temprature'; did you mean 'temperature'"):
        echo("q", temprature=0, backend=fake)


def test_missing_argument_names_the_program(fake: ramet.Fake) -> None:
    with pytest.raises(TypeError, match=r"echo.*missing a required argument: 'question'"):
        echo(backend=fake)
    with pytest.raises(TypeError, match="echo"):
        echo("a", "b", "c", backend=fake)


def test_parameters_of_the_program_come_before_run_options(fake: ramet.Fake) -> None:
    @ramet.function
    def program(s: ProgramState, temperature: str, stream: int) -> str:
        return f"{temperature} {stream}"

    assert program(temperature="warm", stream=3, backend=fake).ret_value == "warm 3"


def test_run_options_come_before_the_programs_own_rest(fake: ramet.Fake) -> None:
    @ramet.function
    def program(s: ProgramState, **rest: Any) -> dict[str, Any]:
        return rest

    assert program(seed=1, color="red", backend=fake).ret_value == {"color": "red"}


def test_bind_presets_and_the_call_wins(fake: ramet.Fake) -> None:
    loud = echo.bind(style="loud", backend=fake)
    assert loud("q")["answer"] == "loud:q"
    assert loud("q", style="soft")["answer"] == "soft:q"
    assert echo.bind("q")(backend=fake)["answer"] == "plain:q"
    with pytest.raises(TypeError, match="did you mean 'style'"):
        echo.bind(styl="loud")


def _generator(s: ProgramState) -> Any:
    yield


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda: None, "first parameter"),
        (_generator, "yield"),
        (len, "made of a function"),
    ],
)
def test_function_that_cannot_be_a_program_is_refused(func: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        ramet.function(func)


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"timeout": -1}, {"timeout": "1"}, {"seed": -1}, {"on_error": "ignore"}],
)
def test_bad_option_is_refused_before_the_body_runs(options: dict[str, Any]) -> None:
    ran = []

    @ramet.function
    def program(s: ProgramState) -> None:
        ran.append(1)

    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        program(backend=ramet.Fake(), **options)
    assert not ran


def test_backend_that_is_none_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not a backend"):
        echo("q", backend="http://localhost")
    with pytest.raises(TypeError, match="not a backend"):
        ramet.set_default_backend(3)  # type: ignore[arg-type]


def test_run_waits_for_everything_forks_included() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("a")
        s.fork(2).__iadd__(ramet.gen("b"))

    fake = ramet.Fake(lambda p, n: "x", delay=0.05)
    program(backend=fake)
    assert fake.num_running == 0
    assert len(fake.requests) == 3


def test_error_of_the_body_leaves_run_as_itself_with_the_line(fake: ramet.Fake) -> None:
    class CustomError(Exception):
        pass

    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")
        raise CustomError("mine")

    with pytest.raises(CustomError, match="mine") as caught:
        program(backend=fake)
    line = program.func.__code__.co_firstlineno + 3
    assert caught.value.__notes__ == [f"in the program program, {__file__} line {line}"]


def test_error_in_a_fork_body_ends_every_request() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        for i, branch in enumerate(s.fork(4)):
            branch += ramet.gen("x")
            if i == 2:
                raise ValueError("in the fork")

    fake = ramet.Fake(lambda p, n: "x", delay=30)
    with pytest.raises(ValueError, match="in the fork"):
        program(backend=fake)
    assert fake.num_running == 0
    assert len(fake.requests) == 3
    assert echo("q", backend=ramet.Fake(lambda p, n: "x"))["answer"] == "x"


def test_failed_gen_raises_at_the_read_and_can_be_handled() -> None:
    @ramet.function
    def program(s: ProgramState) -> str:
        s += ramet.gen("x")
        try:
            return str(s["x"])
        except GenerationError:
            return "handled"

    assert program(backend=ramet.Fake()).ret_value == "handled"


def test_failed_gen_that_nobody_reads_raises_from_run() -> None:
    with pytest.raises(GenerationError, match="'answer' failed: no answer is scripted"):
        echo("q", backend=ramet.Fake())


def test_on_error_return_gives_the_state() -> None:
    state = echo("q", backend=ramet.Fake(), on_error="return")
    assert isinstance(state.error(), GenerationError)
    assert state.ret_value == "plain"
    with pytest.raises(GenerationError):
        state["answer"]
    with pytest.raises(GenerationError):
        state.text()


def test_nodes_after_a_failure_are_not_carried_out_and_raise_the_same_error() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x") + ramet.gen("y")
        s += ramet.gen("z")

    fake = ramet.Fake({"x": RuntimeError("boom"), "y": "-", "z": "-"})
    state = program(backend=fake, on_error="return")
    for name in ("x", "y", "z", "never"):
        with pytest.raises(GenerationError, match="'x' failed: boom"):
            state[name]
    assert [r.label for r in fake.requests] == ["x"]


def test_nested_program_is_an_independent_state_with_the_callers_backend() -> None:
    @ramet.function
    def outer(s: ProgramState) -> str:
        s += "outer text"
        return str(echo("inner")["answer"])

    state = outer(backend=ramet.Fake(lambda prompt, name: prompt))
    assert state.ret_value == "plain:inner"
    assert state.text() == "outer text"


def test_nested_program_does_not_inherit_sampling() -> None:
    @ramet.function
    def outer(s: ProgramState) -> None:
        echo("inner")

    fake = ramet.Fake(lambda p, n: "x")
    outer(backend=fake, temperature=0)
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert request.sampling.temperature == 1.0


def test_backend_block_holds_for_the_block_only() -> None:
    inner, outer = ramet.Fake(lambda p, n: "inner"), ramet.Fake(lambda p, n: "outer")
    with ramet.backend(outer):
        with ramet.backend(inner):
            assert echo("q")["answer"] == "inner"
        assert echo("q")["answer"] == "outer"


def test_body_runs_exactly_once(fake: ramet.Fake) -> None:
    calls = []

    @ramet.function
    def program(s: ProgramState) -> None:
        calls.append(1)
        s += ramet.gen("x")

    program(backend=fake)
    program.run_batch([{}, {}, {}], backend=fake)
    assert len(calls) == 4


def test_signature_is_the_functions() -> None:
    assert list(inspect.signature(echo).parameters) == ["s", "question", "style"]


def test_backend_that_raises_fails_the_gen() -> None:
    class Broken(ramet.Fake):
        def submit(self, request: Any, on_event: Any) -> None:
            raise OSError("no connection")

    with pytest.raises(GenerationError, match="no connection") as caught:
        echo("q", backend=Broken())
    assert isinstance(caught.value.__cause__, OSError)
