PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: run test lint bench clean

run: .venv/installed
	$(BIN)/fedilc run

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report=term:skip-covered

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed
	$(BIN)/python -m benchmarks $(ARGS)

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit("fedilc needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/made pyproject.toml constraints.txt
	@echo "installing fedilc into .venv (torch is large: the first time takes a minute or more)"
	$(PIP) -e .
	$(BIN)/python -c 'import fedilc.aggregation.kernels'
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
