# make run    set up, then the local benchmark to its report        make test   set up, then the tests
# make check  format, lint, types, tests, slow tests (what CI runs)  make lock   refresh requirements.lock
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test slow check format lint types lock clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml infra/setup.sh
	@PYTHON=$(PYTHON) sh infra/setup.sh $(VENV)
	@touch $@

run: setup
	$(BIN)/nodesweep run configs/local.yaml

test: setup
	$(BIN)/pytest -m "not slow"

slow: setup
	$(BIN)/pytest -m slow

check: setup lint types test slow

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# Exact versions with hashes for Python 3.11 on Linux; the image's own file is refreshed as infra/image/README.md says.
lock:
	$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11 --python-platform linux --generate-hashes \
		--no-header --no-emit-index-url --upgrade -o requirements.lock

clean:
	rm -rf $(VENV) .nodesweep build *.egg-info .pytest_cache .ruff_cache .mypy_cache
