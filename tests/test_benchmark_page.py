"""docs/benchmarks.md has a place for the table of every benchmark."""

from tests.benchmarks.report import PAGE
from tests.benchmarks.run import BENCHMARKS


def test_every_benchmark_has_a_place_on_the_page_and_no_other_has() -> None:
    page = PAGE.read_text(encoding="utf-8")
    places = [line for line in page.splitlines() if line.startswith(("<!-- begin", "<!-- end"))]
    begins = [line.split()[2] for line in places if "begin" in line]
    assert [line.split()[2] for line in places] == [n for name in begins for n in (name, name)]
    assert set(begins) == set(BENCHMARKS)
