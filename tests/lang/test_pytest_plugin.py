"""The fixture of tests without a model."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ramet
from ramet import ProgramState


@ramet.function
def ask(s: ProgramState) -> None:
    s += "q" + ramet.gen("x")


def test_fixture_makes_the_backend_in_force(ramet_fake: Callable[..., ramet.Fake]) -> None:
    fake = ramet_fake({"x": "answer"})
    assert ask()["x"] == "answer"
    assert len(fake.requests) == 1


def test_default_engine_cannot_start(ramet_fake: Callable[..., ramet.Fake]) -> None:
    with pytest.raises(RuntimeError, match="does not start in a test"):
        ask()


def test_backend_before_the_test_is_back_after_it(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        """
from ramet.execution import context

def test_with(ramet_fake):
    ramet_fake({})
    assert context._process_backend is not None

def test_without():
    assert context._process_backend is None
"""
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "2 passed" in result.stdout
