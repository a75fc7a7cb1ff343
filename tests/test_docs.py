"""README and docs: snippets run, links lead somewhere, named files exist, commands are marked."""

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- fake: (?P<fake>.*?) -->\n)?^```python\n(?P<code>.*?)^```", re.S | re.M)
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:lang|runtime|kernels|tests|examples|docs)/[\w./-]*)`")


@dataclass(frozen=True)
class Snippet:
    """A block of code, with scripted answers where an HTML comment above it has some."""

    page: Path
    line: int
    code: str
    answers: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs_model(self) -> bool:
        return self.code.startswith("# needs a model")


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            answers = json.loads(match["fake"] or "{}")
            found.append(Snippet(page, line, match["code"], answers))
    return found


def run_snippet(snippet: Snippet) -> None:
    code = "\n" * (snippet.line - 1) + snippet.code  # tracebacks then show the page's line
    path = str(snippet.page)
    exec(compile(code, path, "exec"), {"__name__": "__main__", "__file__": path})


QUICKSTART_ANSWERS = {"answer": "Anna Miller wrote it.", "pleased": "No"}  # the README's program


@pytest.mark.parametrize(
    "snippet", [s for s in snippets() if not s.needs_model], ids=lambda snippet: snippet.id
)
def test_snippet_runs(
    snippet: Snippet, ramet_fake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ramet_fake(snippet.answers or QUICKSTART_ANSWERS)
    run_snippet(snippet)


@pytest.mark.slow
@pytest.mark.parametrize(
    "snippet", [s for s in snippets() if s.needs_model], ids=lambda snippet: snippet.id
)
def test_snippet_with_a_model_runs(snippet: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run_snippet(snippet)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_internal_links_lead_to_files(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    paths = [target.partition("#")[0] for target in targets]
    assert [path for path in paths if path and not (page.parent / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_exist(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        if anchor:
            assert anchor in anchors(other.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """Return what the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    named = NAMED_FILE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    reached = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    pages = set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs/index.md"}
    assert {page.relative_to(ROOT) for page in pages - reached} == set()


def test_readme_marks_one_command_of_each_kind() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("quickstart", "tests"):
        assert len(re.findall(rf"`[^`\n]+` *<!-- command: {name} -->", readme)) == 1


def test_readme_program_is_the_example() -> None:
    program = next(s.code for s in snippets() if s.page.name == "README.md")
    example = (ROOT / "examples/quickstart.py").read_text(encoding="utf-8")
    assert len(program.splitlines()) == 14
    assert ast.dump(ast.parse(program)) == ast.dump(ast.parse(example))


def test_readme_begins_with_everything_in_thirty_lines() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    order = ["# Ramet", "pip install", "import ramet", "run_batch", "as sgl", "make bench", "135M"]
    found = [next(i for i, line in enumerate(lines) if part in line) for part in order]
    assert found == sorted(found)
