# make run    set up, then the local benchmark to its report        make test   set up, then the fast tests
# make containers   the tests with real containers (as root; packages: CONTRIBUTING.md)
# make matrix       the training program on every PyTorch from 2.1 on (VERSIONS="2.3.0 2.13.0"; 5 GB of downloads each)
# make up     Prefect server, worker, local platform and deployments on this machine; make down ends them
#             make up PORT=4300 PLATFORM_PORT=4670   on other ports than 4200 and 4570
# make snapshots   rewrite the texts that tests compare (tests/**/__snapshots__); review the diff
# make check  format, lint, types, tests, slow tests (CI)  make lock   refresh requirements.lock
# make docs   the documentation site, in build/docs/html; every link is checked
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 4200
PLATFORM_PORT ?= 4570

.PHONY: setup run up down test others slow several measured production engines snapshots namespaces containers matrix coverage check format lint types docs lock clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml setup.py infra/setup.sh
	@PYTHON=$(PYTHON) bash infra/setup.sh $(VENV)
	@touch $@

run: setup
	$(BIN)/nodesweep run configs/local.yaml

up: setup
	@$(BIN)/python -m nodesweep.infra.worker up --port $(PORT) --platform-port $(PLATFORM_PORT)

down: setup
	@$(BIN)/python -m nodesweep.infra.worker down

# The flows' tests first and five at a time: they wait more than they compute. Those of the arithmetic run once, under coverage.
OTHERS = $(filter-out tests/flows/ tests/__pycache__/,$(wildcard tests/*/)) $(wildcard tests/test_*.py)
test: setup others coverage

others: setup
	$(BIN)/pytest -m "not slow" -n 5 --dist loadfile --no-loadscope-reorder --ignore=tests/nodesweep/scaling tests/flows $(OTHERS)

# What root has and an ordinary user has not: control groups, and users to become. The image store is the same for both.
engines: setup
	$(BIN)/pytest -m "not slow" -n 3 --dist loadfile tests/infra/local/engine tests/test_ci.py tests/infra/local/api/test_access.py tests/infra/worker/test_machine.py \
		--ignore=tests/infra/local/engine/process/test_image_store.py

# Three at a time, as they wait about as much as they compute, the files that take the longest first; by themselves what shares one
# Prefect server, and what measures emulated nodes.
MEASURED := tests/test_end_to_end.py tests/test_end_to_end_spot.py
LONGEST := $(wildcard tests/infra/image_spark/test_judge_on_*.py) tests/examples/test_recipes.py tests/benchmarks/test_chaos.py \
	tests/infra/image/training/test_resume.py tests/test_end_to_end_secrets.py tests/test_end_to_end_spark.py \
	tests/infra/local/engine/process/test_real_toolkit.py tests/infra/local/state/test_damaged_files.py tests/test_package.py \
	tests/infra/image/test_torch_names.py tests/infra/image/training/test_runs.py tests/clients/test_aws_cli.py
SEVERAL = $(filter-out $(LONGEST) $(MEASURED) tests/containers/% tests/production/%, \
	$(sort $(shell grep -lr mark.slow tests --include='test_*.py')))
slow: several measured production

several: setup
	$(BIN)/pytest -m slow -n 3 --dist loadfile --no-loadscope-reorder --durations=15 $(LONGEST) $(SEVERAL)

measured: setup
	$(BIN)/pytest -m slow --durations=15 $(MEASURED)

production: setup
	$(BIN)/pytest -m slow --durations=15 tests/production

# What a person reads (messages, reports, pages of the terminal) is compared with snapshots; a change of it is reviewed as their diff.
snapshots: setup
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile --snapshot-update $$(grep -lrw snapshot tests --include='test_*.py')

# What only an ordinary user with user namespaces does: two nodes with a /opt/ml of their own. Skipped, with the reason, where
# the kernel allows none.
namespaces: setup
	$(BIN)/pytest -m slow tests/clients/test_model_trainer.py -k two_nodes

containers: setup
	$(BIN)/pytest -m containers --durations=15 tests/containers

# One environment after another, each deleted once it is tested; the result goes to benchmarks/results.
matrix: setup
	$(BIN)/python -m benchmarks.training_matrix $(if $(VERSIONS),--versions $(VERSIONS))

check: setup lint types test slow

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# The arithmetic: every line and every branch. The others are covered by the tests of the tasks and flows that use them.
coverage: setup
	$(BIN)/pytest -q tests/nodesweep/scaling -m "not slow" -n 2 \
		--cov=nodesweep.scaling --cov-branch --cov-report=
	$(BIN)/coverage report --show-missing --skip-covered --fail-under=100 \
		--omit='nodesweep/scaling/names.py,nodesweep/scaling/planning/request.py,nodesweep/scaling/report/schema.py,*/__main__.py'

types: setup
	$(BIN)/mypy

# Fetches nothing; the fast tests build it, too.
docs: setup
	$(BIN)/python -m docs.site.build

# Exact versions with hashes for Python 3.11 on Linux, and the part of them that the worker's image installs; the
# training image's own file is refreshed as infra/image/README.md says.
lock:
	$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11 --python-platform linux --generate-hashes \
		--no-header --no-emit-index-url --upgrade -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --constraint requirements.lock --python-version 3.11 \
		--python-platform linux --generate-hashes --no-header --no-annotate --no-emit-index-url \
		-o infra/worker/requirements.lock

clean:
	rm -rf $(VENV) .nodesweep build *.egg-info .pytest_cache .ruff_cache .mypy_cache
