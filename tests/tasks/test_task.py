"""A function as a task, and the modules that work without Prefect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prefect import flow
from prefect.cache_policies import NO_CACHE
from prefect.tasks import Task

from nodesweep.aws.platform import TASK_OPTIONS
from nodesweep.tasks import calls
from nodesweep.tasks.task import as_task

REPOSITORY = Path(__file__).resolve().parents[2]


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def test_it_has_what_the_function_has_and_the_options_say() -> None:
    task = as_task("double-it", double, **TASK_OPTIONS)
    assert (task.name, task.description) == ("double-it", "Return twice the number.")
    assert task.cache_policy == NO_CACHE
    assert task.retries == len(task.retry_delay_seconds) == 3  # type: ignore[arg-type]


@pytest.mark.usefixtures("prefect")
def test_it_runs_as_a_task_of_a_flow() -> None:
    task = as_task("double-it", double)

    @flow
    def both() -> tuple[int, int]:
        return task(1), task.submit(2).result()

    assert both() == (2, 4)


def test_every_call_has_a_name_of_its_own_and_retries() -> None:
    tasks = [each for each in vars(calls).values() if isinstance(each, Task)]
    assert len(tasks) > 30 and len({each.name for each in tasks}) == len(tasks)
    assert [each.name for each in tasks if not each.retries] == ["validate-dataset"]


def test_the_functions_are_imported_without_prefect() -> None:
    program = (
        "import sys, nodesweep.flows.stages.preflight, nodesweep.tasks.sweeps.stop\n"
        "import nodesweep.conformance.run, nodesweep.cli.commands.plan\n"
        "assert 'prefect' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
