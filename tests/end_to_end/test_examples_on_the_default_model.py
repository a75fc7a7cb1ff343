"""The examples and the command on the default model, each in a process of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
USAGE = re.compile(r"prompt (\d+) tokens: (\d+) cached, (\d+) computed; (\d+) generated")


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def usage_of(text: str) -> tuple[int, int, int, int]:
    found = USAGE.search(text)
    assert found
    prompt, cached, computed, generated = map(int, found.groups())
    assert prompt == cached + computed
    return prompt, cached, computed, generated


def test_quickstart_prints_answers_a_choice_and_a_usage_line() -> None:
    lines = run("examples/quickstart.py").stdout.strip().splitlines()
    assert lines[-2] in ("Pleased: Yes", "Pleased: No")
    _, cached, computed, generated = usage_of(lines[-1])
    assert cached > computed  # the trunk is computed once for the three forks and the choice
    assert generated > 0


def test_quickstart_repeats_itself() -> None:
    first, second = (run("examples/quickstart.py").stdout for _ in range(2))
    assert first == second


def test_chat_answers_each_line_of_a_pipe_and_reuses_the_conversation() -> None:
    done = run("examples/chat.py", text="Hello!\nWhat is the capital of France?\n")
    assert len(done.stdout.strip().splitlines()) >= 2
    _, cached, _, _ = usage_of(done.stderr)
    assert cached > 0


def test_judge_gives_grades_and_a_verdict() -> None:
    out = run("examples/judge.py").stdout
    assert re.search(r"^clarity \((good|fair|poor)\): ", out, re.M)
    assert re.search(r"^print it: (yes|no)$", out, re.M)
    usage_of(out)


def test_command_runs_a_program_and_shows_json() -> None:
    arguments = ["--arg", "essay=Gardens are good.", "--temperature", "0", "--show", "json"]
    done = run("-m", "ramet.cli", "run", "examples/judge.py:judge", *arguments)
    body = json.loads(done.stdout)
    assert body["variables"]["verdict"] in ("yes", "no")
    assert body["usage"]["prompt_tokens"] > 0


def test_info_tells_the_model_and_the_memory() -> None:
    info = json.loads(run("-m", "ramet.cli", "info", "--json").stdout)
    assert info["context_length"] > 0


def test_few_shot_sorts_the_words_and_shares_the_examples() -> None:
    out = run("examples/few_shot.py").stdout
    assert re.search(r"^wrench +tool$", out, re.M)
    assert re.search(r"^eagle +animal$", out, re.M)
    _, cached, computed, _ = usage_of(out)
    assert cached > computed


def test_tree_of_thought_goes_on_from_the_best_step() -> None:
    out = run("examples/tree_of_thought.py").stdout
    for level in (1, 2):
        votes = [float(v) for v in re.findall(rf"^. (\d\.\d\d) step {level}:", out, re.M)]
        best = re.search(rf"^\* (\d\.\d\d) step {level}:", out, re.M)
        assert best
        assert float(best[1]) == max(votes)
    assert "The answer is" in out


def test_react_looks_up_and_calculates() -> None:
    out = run("examples/react.py").stdout
    assert "Action: look_up[France]\nObservation: Paris" in out
    assert "Action: calculate[12 * 7]\nObservation: 84" in out
    assert "=> 84" in out


def test_rag_answers_each_question_and_computes_the_document_once() -> None:
    out = run("examples/rag.py").stdout
    assert "kettle" in out
    prompt, cached, _, _ = usage_of(out)
    assert cached > prompt / 2


def test_extract_fills_every_field() -> None:
    lines = run("examples/extract.py").stdout.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["product", "day", "name", "mood", "wants"]
    assert all(len(line.split()) > 1 for line in lines[:5])


def test_long_document_says_where_each_note_comes_from() -> None:
    out = run("examples/long_document.py").stdout
    places = [(int(a), int(b)) for a, b in re.findall(r"\(characters (\d+)-(\d+)\)", out)]
    assert len(places) > 1
    assert [a for a, _ in places] == [0, *[b for _, b in places[:-1]]]
