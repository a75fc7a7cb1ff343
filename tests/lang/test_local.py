"""The engine of this machine: which one starts, and when. No model is loaded here."""

import importlib
import types
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.backends import local


@ramet.function
def ask(s: ProgramState) -> None:
    s += "q" + ramet.gen("x")


class Started:
    """Stands for the runtime's engines: notes what it was started with."""

    is_closed = False
    kinds: list[str] = []  # noqa: RUF012 emptied by the fixture

    def __init__(self, config: Any) -> None:
        self.kinds.append(f"worker {config.model} {config.context_length}")
        self.fake = ramet.Fake({"x": "-"})

    @classmethod
    def from_config(cls, config: Any) -> "Started":
        started = cls(config)
        cls.kinds[-1] = cls.kinds[-1].replace("worker", "thread")
        return started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)

    def info(self) -> dict[str, object]:
        return {"model": "small", "num_parameters": 135_000_000}


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    real = importlib.import_module

    def import_module(name: str) -> Any:
        modules = {
            "ramet.runtime.engine": types.SimpleNamespace(Engine=Started),
            "ramet.runtime.worker_client": types.SimpleNamespace(WorkerEngine=Started),
        }
        return modules.get(name) or real(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(local, "_default", None)
    monkeypatch.setattr(Started, "kinds", [])
    return Started.kinds


def test_auto_is_a_process_of_its_own(kinds: list[str]) -> None:
    ramet.Engine()
    ramet.Engine(Path("m.gguf"), process="worker", context_length=64)
    ramet.Engine("m.gguf", process="thread")
    assert kinds == ["worker None None", "worker m.gguf 64", "thread m.gguf None"]


def test_unknown_option_names_the_nearest(kinds: list[str]) -> None:
    with pytest.raises(TypeError, match="did you mean 'context_length'"):
        ramet.Engine(context_lenght=5)
    with pytest.raises(ValueError, match="process"):
        ramet.Engine(process="gpu")
    assert not kinds


def test_default_engine_starts_once_and_says_so(
    kinds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask()["x"] == "-"
    ask()
    assert len(kinds) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "default model small, 135M parameters" in error
    assert "set_default_backend" in error


def test_default_engine_that_has_ended_is_started_again(
    kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    first = local.default_engine()
    monkeypatch.setattr(first._engine, "is_closed", True, raising=False)
    assert ask()["x"] == "-"
    assert local.default_engine() is not first
    assert len(kinds) == 2


def test_engine_passes_everything_on(kinds: list[str]) -> None:
    with ramet.Engine() as engine:
        assert ask(backend=engine).text() == "q-"
        assert engine.flush_cache() is True
        assert engine.info()["model"] == "small"
        assert repr(engine) == "<Engine of the default model>"
    with pytest.raises(ramet.errors.GenerationError, match="closed"):
        ask(backend=engine)
