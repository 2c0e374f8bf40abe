PYTHON ?= python3
BIN := .venv/bin
FLOWER := .venv-flower/bin
INSTALL := -m pip install --disable-pip-version-check --quiet --no-compile

# Hundreds of processes import torch here: let Python keep compiled modules, even if the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=

# Lint and the second environment at the same time; tests after them, since Ray gives up on a busy machine.
MAKEFLAGS += --jobs=2
PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder

define tests
failed=; \
$(FLOWER)/python -m pytest tests/runtimes/flower $(1) || failed=yes; \
$(BIN)/python $(PYTEST) $(1) || failed=yes; \
test -z "$$failed"
endef

.PHONY: docs run test test-all test-fresh browser coverage lint bench wheel clean

run: .venv/installed
	$(BIN)/fedilc run
	$(BIN)/fedilc run site-shortcuts

test: lint .venv-flower/installed
	$(call tests,-m 'not long')

test-all: lint .venv-flower/installed
	$(call tests)

# The tests of milliseconds and seconds, as on a machine that has no data sets, no cache and an empty home; those of
# arithmetic alone, which none of these can change, are left to the tests above.
ARITHMETIC := aggregation contracts evaluation federation gradients optimizers penalties privacy
test-fresh: .venv/installed-dev .venv-flower/installed
	@home=$$(mktemp -d); trap 'rm -rf "$$home"' EXIT; \
	unset FEDILC_DATA; export HOME="$$home" XDG_CACHE_HOME="$$home/.cache" XDG_CONFIG_HOME="$$home/.config"; \
	$(call tests,-m 'not slow and not long' $(ARITHMETIC:%=--ignore=tests/%))

# The page and the report are tested in a browser; without one, those tests say so and are skipped.
browser:
	command -v chromium >/dev/null && command -v chromedriver >/dev/null || (apt-get update -q && apt-get install -y -q chromium chromium-driver)

coverage: .venv/installed-dev
	$(BIN)/python $(PYTEST) --cov --cov-report=term:skip-covered

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in docs/_build: static files to open or to publish.
docs: .venv/installed-dev
	$(BIN)/python docs/site/build.py

bench: .venv/installed
	$(BIN)/python -m benchmarks $(ARGS)

wheel: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m pytest tests/test_wheel.py

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit("fedilc needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/made pyproject.toml constraints.txt
	@echo "installing fedilc into .venv (torch is large: the first time takes a minute or more)"
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[benchmarks,report,serve,sklearn]'
	$(BIN)/python -c 'import fedilc.aggregation._kernels.values, fedilc.aggregation._kernels.logs, fedilc.penalties._kernels.compiled, fedilc.gradients._kernels.compiled, matplotlib.font_manager'
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
	rm -rf docs/_build docs/gallery .venv .venv-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
