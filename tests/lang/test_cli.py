"""The `ramet` command on a fake backend: what it prints, its exit codes, its messages."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ramet
from ramet.cli import main

PROGRAM = """
import ramet


@ramet.function
def answer(s, question, words: int = 10, loud: bool = False):
    s += ramet.user(f"{question} In {words} words, loud={loud}.")
    s += ramet.assistant(ramet.gen("reply"))


@ramet.function
def crash(s):
    s += "Hello"
    raise ValueError("too early")


@ramet.function
def warm(s, temperature="cold"):
    s += f"It is {temperature}." + ramet.gen("reply")


def plain(s):
    pass
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "qa.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return str(path)


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake({"reply": "Because."})


def run(fake: ramet.Fake, *arguments: str) -> int:
    return main(["run", *arguments], backend=fake)


def test_run_prints_the_transcript_and_the_usage(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, f"{file}:answer", "--arg", "question=Why?", "--temperature", "0") == 0
    shown = capsys.readouterr()
    assert "Why? In 10 words, loud=False." in shown.out
    assert "Because." in shown.out
    assert "generated" in shown.out
    assert shown.err == ""


def test_run_converts_annotated_arguments(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = ["--arg", "question=Why?", "--arg", "words=3", "--arg", "loud=yes"]
    assert run(fake, f"{file}:answer", *pairs) == 0
    assert "In 3 words, loud=True." in capsys.readouterr().out


def test_run_reads_an_argument_from_a_file(
    file: str, fake: ramet.Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "question.txt").write_text("Why is that?", encoding="utf-8")
    question = f"question=@{tmp_path / 'question.txt'}"
    assert run(fake, f"{file}:answer", "--arg", question) == 0
    assert "Why is that?" in capsys.readouterr().out


def test_doubled_at_sign_is_text(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, f"{file}:answer", "--arg", "question=@@all") == 0
    assert "@all In" in capsys.readouterr().out


def test_show_json_has_variables_messages_usage_and_seed(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--arg", "question=Why?", "--show", "json", "--seed", "5"]
    assert run(fake, f"{file}:answer", *options) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["variables"] == {"reply": "Because."}
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
    assert body["usage"]["prompt_tokens"] > 0
    assert body["seed"] == 5


def test_show_text_has_the_whole_prompt(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, f"{file}:answer", "--arg", "question=Why?", "--show", "text") == 0
    assert "Because." in capsys.readouterr().out


def test_crash_of_the_program_is_code_1_with_its_line_and_no_traceback(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, f"{file}:crash") == 1
    shown = capsys.readouterr().err
    assert "ValueError: too early" in shown
    assert "raise ValueError" in shown
    assert "Traceback" not in shown


def test_failed_generation_is_code_1_and_names_the_variable(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ramet.Fake({}), f"{file}:answer", "--arg", "question=Why?") == 1
    shown = capsys.readouterr().err
    assert "'reply'" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([":answr"], "did you mean 'answer'?"),
        ([":plain"], "@ramet.function"),
        ([""], "file.py:function"),
        ([":answer"], "missing: --arg question=…"),
        ([":answer", "--arg", "question"], "NAME=VALUE"),
        ([":answer", "--arg", "qestion=a"], "did you mean 'question'?"),
        ([":answer", "--arg", "question=a", "--arg", "question=b"], "twice"),
        ([":answer", "--arg", "question=a", "--arg", "words=ten"], "a number (int)"),
        ([":answer", "--arg", "question=a", "--arg", "loud=maybe"], "true or false"),
        ([":answer", "--arg", "question=@/no/such/file"], "cannot read"),
        ([":answer", "--arg", "question=a", "--temperature", "-1"], "temperature"),
        ([":answer", "--arg", "question=a", "--max-tokens", "-5"], "max_new_tokens"),
        ([":warm", "--arg", "temperature=hot", "--temperature", "0"], "leave --temperature out"),
        ([":warm", "--temperature", "0"], "--arg temperature=…"),
        ([":answer", "--arg", "question=a", "--seed", "-1"], "seed must be an integer from 0"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_to_do(
    file: str,
    fake: ramet.Fake,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert run(fake, file + arguments[0], *arguments[1:]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_unknown_file_names_the_nearest(
    file: str, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, f"{file.replace('qa.py', 'qu.py')}:answer") == 2
    assert "did you mean" in capsys.readouterr().err


def test_file_with_a_syntax_error_is_named_with_its_line(
    tmp_path: Path, fake: ramet.Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import ramet\ndef f(:\n", encoding="utf-8")
    assert run(fake, f"{path}:f") == 2
    assert f"{path}:2" in capsys.readouterr().err


def test_info_prints_lines_or_json(fake: ramet.Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"], backend=fake) == 0
    assert "model" in capsys.readouterr().out
    assert main(["info", "--json"], backend=fake) == 0
    assert json.loads(capsys.readouterr().out) == fake.info()


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert ramet.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["info", "--help"]])
def test_help_shows_an_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "ramet info" in shown or "--arg question" in shown


def test_missing_and_unknown_commands_are_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["rum"]) == 2
    assert "rum" in capsys.readouterr().err


def test_unknown_model_is_code_2_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--model", "/no/such/model.gguf"]) == 2
    assert "/no/such/model.gguf" in capsys.readouterr().err


def test_output_that_the_terminal_cannot_show_is_code_1_and_says_what_to_do(
    file: str, fake: ramet.Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert run(fake, f"{file}:answer", "--arg", "question=Why?") == 1
    assert "set PYTHONIOENCODING=utf-8" in capsys.readouterr().err


def test_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(
        "import sys, ramet\n"
        "from ramet.cli import main\n"
        "@ramet.function\n"
        "def long(s):\n"
        "    s += 'text ' * 100_000\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main(['run', f'{__file__}:long'], backend=ramet.Fake()))\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4) == b"text"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 0
