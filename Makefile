PYTHON ?= python3
BIN := .venv/bin
FLOWER := .venv-flower/bin
INSTALL := -m pip install --disable-pip-version-check --quiet --no-compile

# Engines' tests mostly wait, for servers and silos that start: two targets at a time share the machine.
MAKEFLAGS += --jobs=2

.PHONY: run test test-all test-main test-flower coverage lint bench clean

run: .venv/installed
	$(BIN)/fedilc run

test: CHOICE := -m 'not long'
test: lint test-main test-flower

test-all: lint test-main test-flower

test-main: .venv/installed-dev
	$(BIN)/python -m pytest -n auto --dist loadfile $(CHOICE)

coverage: .venv/installed-dev
	$(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report=term:skip-covered

test-flower: .venv-flower/installed
	@echo "testing the Flower runtime in an environment of its own; what it says comes at its end"
	@$(FLOWER)/python -m pytest tests/runtimes/flower $(CHOICE) > .venv-flower/tests.log 2>&1; \
	  status=$$?; cat .venv-flower/tests.log; exit $$status

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
	$(BIN)/python $(INSTALL) -c constraints.txt -e .
	$(BIN)/python -c 'import fedilc.aggregation.kernels'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dev,nvflare]'
	touch $@

.venv-flower/installed: .venv/made pyproject.toml constraints-flower.txt
	@echo "installing fedilc and Flower, whose pins clash with the others', into .venv-flower"
	$(PYTHON) -m venv .venv-flower
	$(FLOWER)/python $(INSTALL) -c constraints-flower.txt -e '.[flower]' pytest pytest-timeout hypothesis
	touch $@

clean:
	rm -rf .venv .venv-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
