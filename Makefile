# make run    set up, then run the local benchmark                  make test   set up, then run the fast tests
# make containers   run the tests with real containers (as root; CONTRIBUTING.md lists the required packages)
# make matrix       test the training program on every PyTorch from 2.1 on (VERSIONS="2.3.0 2.13.0"; 5 GB of downloads each)
# make up     start Prefect server, worker, local platform and deployments on this machine; make down stops them
#             make up PORT=4300 PLATFORM_PORT=4670   on ports other than 4200 and 4570
# make snapshots   update the texts that tests compare (tests/**/__snapshots__); review the diff
# make check  lint, types, fast and slow tests             make lock   refresh requirements.lock
# make docs   build the documentation site in build/docs/html and check every link
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 4200
PLATFORM_PORT ?= 4570
# Container images set this variable. Without bytecode, each pytest worker and each command that a test starts would compile all of its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run run-slurm up down test fast others slow several measured slurm production engines snapshots namespaces containers matrix coverage check format lint types docs lock clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml setup.py infra/local/pyproject.toml infra/setup.sh
	@PYTHON=$(PYTHON) bash infra/setup.sh $(VENV)
	@touch $@

run: setup
	$(BIN)/nodesweep run configs/local.yaml

# Runs the Slurm example on a cluster that this target starts (needs root and Debian's slurmctld slurmd slurm-client munge).
run-slurm: setup
	$(BIN)/python -m tests.nodesweep.launch.slurm.run_example

up: setup
	@$(BIN)/python -m nodesweep.infra.worker up --port $(PORT) --platform-port $(PLATFORM_PORT)

down: setup
	@$(BIN)/python -m nodesweep.infra.worker down

# Of the fast tests, those of flows run first (tests/conftest.py): they wait more than they compute, so that more workers than CPUs
# are of use. COVERAGE=1, as in CI, also checks that the tests of the arithmetic cover every line, for half of their CPU time again.
WORKERS ?= 3
FAST = $(BIN)/pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=30
test: setup $(if $(COVERAGE),others coverage,fast)
AFTER_OTHERS = $(and $(filter test check,$(MAKECMDGOALS)),$(or $(COVERAGE),$(filter check,$(MAKECMDGOALS))),others)

fast: setup
	$(FAST)

others: setup
	$(FAST) --ignore=tests/nodesweep/scaling

# Tests of control groups and of switching users, which need root. Tests that behave the same for every user are left out.
ENGINE := infra/local/tests/engine
SAME := $(ENGINE)/container tests/infra/local/engine/process/test_build_context.py \
	$(addprefix $(ENGINE)/host/test_,attainment.py capacity.py connections.py port_lock.py process_tree.py room.py scope.py) \
	$(addprefix $(ENGINE)/process/test_,dockerfile.py duty_cycle.py image_store.py torch_wheel.py) \
	$(addprefix $(ENGINE)/run/test_,failure.py job_run_attainment.py paths.py)
engines: setup
	$(BIN)/pytest -m "not slow" -n 3 --dist loadfile $(ENGINE) tests/infra/local/engine tests/test_ci.py infra/local/tests/api/test_access.py tests/infra/worker/test_machine.py \
		$(addprefix --ignore=,$(SAME))

# The slow tests run on four workers, since they wait more than they compute, often for each other's nodes; the longest files come
# first, so that all workers end at about the same time. Tests that share one Prefect server, and tests whose jobs must start soon,
# have separate targets. Jobs with real nodes take turns on a machine (infra/local/sagemaker_emulator/engine/host/port_lock.py), so
# `measured` never runs in parallel with `several`, not even with --jobs, and files with such jobs are not adjacent in this list.
MEASURED := tests/test_end_to_end.py tests/test_end_to_end_spot.py
SLURM := tests/nodesweep/launch/slurm/
LONGEST := tests/examples/test_recipes.py tests/infra/image_spark/test_judge_on_spark_35.py tests/benchmarks/test_chaos.py \
	infra/local/tests/state/test_damaged_files.py tests/infra/image/test_toolkit_launches.py tests/infra/aws/test_guide.py \
	tests/clients/test_rehearsal_doc.py tests/benchmarks/test_many_jobs.py tests/benchmarks/test_orchestration_overhead.py \
	tests/infra/image/training/test_resume.py \
	tests/infra/image/training/test_runs.py tests/infra/image/test_torch_names.py tests/test_end_to_end_spark.py \
	tests/clients/test_aws_cli.py tests/test_package.py tests/flows/stages/test_foreign_answers.py \
	tests/infra/local/engine/process/test_real_toolkit.py tests/flows/validation/test_struck_validation.py \
	tests/test_end_to_end_init.py tests/infra/image/test_training_code_doc.py infra/local/tests/processing/test_spark.py \
	tests/configs/test_fuzzed_configs.py tests/test_end_to_end_secrets.py tests/infra/aws/test_deployment.py \
	tests/clients/test_local_platform_doc.py
SEVERAL = $(filter-out $(LONGEST) $(MEASURED) $(SLURM)% tests/containers/% tests/production/%, \
	$(sort $(shell grep -lr mark.slow tests infra/local/tests --include='test_*.py')))
slow: measured several slurm production

several: setup | $(if $(filter measured slow check,$(MAKECMDGOALS)),measured)
	$(BIN)/pytest -m slow -n 4 --dist loadfile --no-loadscope-reorder --durations=30 $(LONGEST) $(SEVERAL)

measured: setup
	$(BIN)/pytest -m slow --durations=30 $(MEASURED)

# A real Slurm cluster per file, for which the tests mostly wait. They take no turns with emulated nodes.
slurm: setup
	$(BIN)/pytest -m slow -n 2 --dist loadfile --durations=30 $(SLURM)

production: setup
	$(BIN)/pytest -m slow --durations=30 tests/production

# Updates the snapshots of messages, reports and terminal pages with which tests compare; review the diff.
snapshots: setup
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile --snapshot-update $$(grep -lrw snapshot tests infra/local/tests --include='test_*.py')

# A test with two nodes, each with a separate /opt/ml, for an ordinary user with user namespaces. pytest skips it, with the reason,
# if the kernel allows no user namespaces. With --jobs, it runs in parallel with the tests of the arithmetic.
namespaces: setup | $(AFTER_OTHERS)
	$(BIN)/pytest -m slow tests/clients/test_model_trainer.py -k two_nodes

containers: setup
	$(BIN)/pytest -m containers --durations=30 tests/containers

# Creates one environment at a time and deletes it after its test; the result goes to benchmarks/results.
matrix: setup
	$(BIN)/python -m benchmarks.training_matrix $(if $(VERSIONS),--versions $(VERSIONS))

check: setup lint types others coverage slow

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Tests of the arithmetic must cover every line and branch. Tests of tasks and flows cover the omitted modules.
coverage: setup | $(AFTER_OTHERS)
	$(BIN)/pytest -q tests/nodesweep/scaling -m "not slow" -n 2 --cov=nodesweep.scaling --cov-branch --cov-report=
	$(BIN)/coverage report --show-missing --skip-covered --fail-under=100 \
		--omit='nodesweep/scaling/names.py,nodesweep/scaling/report/schema.py,*/__main__.py'

types: setup
	$(BIN)/mypy

# Builds the documentation without downloads; the fast tests build it, too.
docs: setup
	$(BIN)/python -m docs.site.build

# Locks exact versions with hashes for Python 3.11 on Linux, and the subset that the worker's image installs.
# infra/image/README.md describes how to refresh the training image's lock.
lock:
	$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11 --python-platform linux --generate-hashes \
		--no-header --no-emit-index-url --no-emit-package sagemaker-emulator --upgrade -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --constraint requirements.lock --python-version 3.11 \
		--python-platform linux --generate-hashes --no-header --no-annotate --no-emit-index-url \
		-o infra/worker/requirements.lock

clean:
	rm -rf $(VENV) .nodesweep build *.egg-info .pytest_cache .ruff_cache .mypy_cache
