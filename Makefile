# Every target takes PYTHON=…; the default is .venv where `make install` has made one.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

.PHONY: links install run check test test-slow bench bench-quick docs

links: # the folders under their import names, for the type checker
	rm -rf build/links && mkdir -p build/links/ramet
	ln -s $(CURDIR)/lang/* $(CURDIR)/runtime $(CURDIR)/kernels build/links/ramet/

install:
	python3 -m venv .venv && .venv/bin/pip install -e '.[dev]'

run:
	$(PYTHON) examples/quickstart.py

check: links
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

test-slow:
	$(PYTHON) -m pytest -m slow

bench: # all benchmarks, written into docs/benchmarks.md
	$(PYTHON) -m tests.benchmarks.run

bench-quick: # all of them in small, printed only
	$(PYTHON) -m tests.benchmarks.run --quick

docs: # links and file names exist, every snippet and example runs
	$(PYTHON) -m pytest tests/test_docs.py tests/test_examples.py
