"""Every example runs, on scripted answers."""

import io
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ANSWERS: dict[str, dict[str, object]] = {
    "quickstart": {"answer": "Anna Miller wrote it.", "pleased": "No"},
    "chat": {"reply": ["Hello!", "I am a program."]},
    "judge": {"remark": "It is clear.", "grade": "good", "verdict": "yes"},
}
SHOWS = {
    "quickstart": ["Anna Miller wrote it.", "Pleased: No", "generated"],
    "chat": ["Hello!", "I am a program."],
    "judge": ["clarity (good): It is clear.", "print it: yes", "generated"],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path,
    ramet_fake: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi!\n\nWho are you?\n"))
    ramet_fake(ANSWERS[path.stem])
    runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert [part for part in SHOWS[path.stem] if part not in shown] == []
