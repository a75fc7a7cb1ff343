"""Every example runs on scripted answers, and is as short as an example should be."""

import io
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ANSWERS: dict[str, dict[Any, object]] = {
    "quickstart": {"answer": "Anna Miller wrote it.", "pleased": "No"},
    "chat": {"reply": ["Hello!", "I am a program."]},
    "judge": {"remark": "It is clear.", "grade": "good", "verdict": "yes"},
    "few_shot": {
        re.compile(r"(wrench|saw)\nKind:$"): " tool",
        re.compile(r"(donkey|eagle)\nKind:$"): " animal",
        re.compile(r"(noodles|cake)\nKind:$"): " food",
    },
    "tree_of_thought": {"step": " 3 * 4 = 12 pens.", "vote": " yes", "answer": " 7 pens"},
    "react": {"action": [" calculate[12 * 7]", " look_up[Chile]", " finish[84]"]},
    "rag": {"answer": "The kettle."},
    "extract": {
        "product": " a kettle",
        "day": " Tuesday",
        "name": " Anna Miller",
        "mood": " angry",
        "wants": " a refund",
    },
    "long_document": {"topic": " terms", "title": " The Licence"},
}
SHOWS = {
    "quickstart": ["Anna Miller wrote it.", "Pleased: No", "generated"],
    "chat": ["Hello!", "I am a program."],
    "judge": ["clarity (good): It is clear.", "print it: yes", "generated"],
    "few_shot": ["wrench   tool", "donkey   animal", "cake     food"],
    "tree_of_thought": ["step 1: 3 * 4 = 12 pens.", "* 1.00 step 2", "The answer is 7 pens"],
    "react": ["Observation: 84", "Observation: nothing found", "=> 84"],
    "rag": ["What broke? The kettle.", "cached"],
    "extract": ["product  a kettle", "wants    a refund"],
    "long_document": ["Title: The Licence", "2. terms (characters"],
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_ten_to_sixty_lines(path: Path) -> None:
    assert 10 <= len(path.read_text(encoding="utf-8").splitlines()) <= 60
