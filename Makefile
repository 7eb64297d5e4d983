# Every target builds .venv by itself: a fresh clone needs only Python >= 3.11, make and a package index.
PYTHON ?= python3
BIN := .venv/bin

# One torch thread per test process: with two processes on two cores more threads only fight each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

.PHONY: help install demo characters test test-all lint format bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: .venv/.installed  ## create .venv with the project and its development tools

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: install  ## the saving on this machine, then a CNN with the grouped and the flat head: four minutes
	$(BIN)/python scripts/bench_heads.py --quick --tables train --repeats 2
	$(BIN)/python scripts/demo.py

characters: install  ## Hangul in typefaces never seen, with the fonts at hand: five minutes
	$(BIN)/python scripts/demo_characters.py

test: install  ## everything that is quick: what a newcomer runs
	$(PYTEST) -m "not slow"

test-all: install  ## the slow checks too
	$(PYTEST)

lint: install  ## formatting, lint and types, without changing a file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install  ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## the full benchmark of the heads (about half an hour)
	$(BIN)/python scripts/bench_heads.py

clean:  ## remove the environment and what the tools left behind
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
