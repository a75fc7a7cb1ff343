"""ramet.Engine(cache_dir=…): prefixes that outlive the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.runtime.protocol import InvalidRequestError, Text
from tests.models import write_model

RULES = "The quick brown fox jumps over the lazy dog. " * 3


@ramet.function
def ask(s: ramet.ProgramState, question: str) -> None:
    s += RULES + question + ramet.gen("answer", max_tokens=4)


def test_a_program_finds_a_saved_prefix_in_the_next_engine(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    options: dict[str, Any] = {
        "process": "thread",
        "max_total_tokens": 500,
        "cache_dir": tmp_path / "saved",
    }
    with ramet.Engine(model, **options) as engine:
        num_saved = engine.save_prefix("rules", RULES)
        assert num_saved == engine.count_tokens((Text(RULES),))
    with ramet.Engine(model, **options) as engine:
        state = ask.run("What then?", backend=engine)
        assert state.usage.cached_tokens >= num_saved - 1
        with pytest.raises(InvalidRequestError, match="1 to 64 letters"):
            engine.save_prefix("my rules", RULES)


def test_saving_needs_a_cache_dir(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    with (
        ramet.Engine(model, process="thread", max_total_tokens=500) as engine,
        pytest.raises(InvalidRequestError, match="start with cache_dir"),
    ):
        engine.save_prefix("rules", RULES)
