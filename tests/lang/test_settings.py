"""`global_config`, and what asks a backend without a program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ramet
from ramet.errors import InvalidRequestError, UnsupportedFeatureError


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    config = ramet.global_config
    before = config.verbosity, config.default_backend, config.skip_special_tokens_in_output
    yield
    config.verbosity, config.default_backend, config.skip_special_tokens_in_output = before


@ramet.function
def ask(s: ramet.ProgramState) -> None:
    s += "Q: " + ramet.gen("answer")


def test_verbosity_of_two_prints_the_final_text(capsys: pytest.CaptureFixture[str]) -> None:
    ask(backend=ramet.Fake({"answer": "quiet"}))
    ramet.global_config.verbosity = 2
    ask(backend=ramet.Fake({"answer": "loud"}))
    ask.stream(backend=ramet.Fake({"answer": "streamed"})).sync()
    assert capsys.readouterr().out == "Q: loud\nQ: streamed\n"


def test_default_backend_is_the_one_that_is_set() -> None:
    fake = ramet.Fake({"answer": "a"})
    ramet.global_config.default_backend = fake
    assert ask()["answer"] == "a"
    assert ramet.global_config.default_backend is fake
    ramet.set_default_backend(None)
    assert ramet.global_config.default_backend is None


def test_special_tokens_are_a_default_that_a_run_wins_over() -> None:
    fake = ramet.Fake({"answer": "a"})
    ramet.global_config.skip_special_tokens_in_output = False
    ask(backend=fake)
    ask(backend=fake, skip_special_tokens=True)
    assert [r.sampling.skip_special_tokens for r in fake.requests] == [False, True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spaces_between_special_tokens_in_out", "nothing is ever put between"),
        ("enable_precache_with_tracing", "enable_radix_cache=False"),
        ("enable_parallel_encoding", "computes the joined text anew"),
    ],
)
def test_what_cannot_change_says_why(name: str, reason: str) -> None:
    setattr(ramet.global_config, name, True)
    with pytest.raises(UnsupportedFeatureError, match=reason):
        setattr(ramet.global_config, name, False)


def test_unknown_field_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean 'verbosity'"):
        ramet.global_config.verbose = 2
    with pytest.raises(AttributeError, match="did you mean 'verbosity'"):
        ramet.global_config.verbosty  # noqa: B018


@pytest.mark.parametrize(("name", "value"), [("verbosity", "2"), ("verbosity", -1)])
def test_value_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        setattr(ramet.global_config, name, value)


def test_default_backend_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="not a backend"):
        ramet.global_config.default_backend = "http://localhost"  # type: ignore[assignment]


def test_flush_cache_empties_the_cache_of_the_backend_in_force() -> None:
    fake = ramet.Fake({"answer": "a"})
    with ramet.backend(fake):
        ask()
        assert ramet.flush_cache() is True
        assert ask().usage.cached_tokens == 0
    assert ramet.flush_cache(fake) is True


def test_server_info_is_that_of_the_backend() -> None:
    assert ramet.get_server_info(ramet.Fake())["model"] == "fake: scripted answers"
    with pytest.raises(TypeError, match="not a backend"):
        ramet.get_server_info("http://localhost")  # type: ignore[arg-type]
