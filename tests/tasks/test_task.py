"""A task is Prefect's, made when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prefect.cache_policies import NO_CACHE
from prefect.tasks import Task

from nodesweep.aws.platform import TASK_OPTIONS
from nodesweep.tasks.task import task

REPOSITORY = Path(__file__).resolve().parents[2]


@task(name="double-it", **TASK_OPTIONS)
def double(number: int) -> int:
    """A task that returns twice the number."""
    return 2 * number


def test_it_has_what_prefects_task_has() -> None:
    assert double.name == "double-it"
    assert double.description == "A task that returns twice the number."
    assert double.cache_policy == NO_CACHE
    assert double.retries == len(double.retry_delay_seconds) == 3
    assert double.fn(4) == 8
    assert isinstance(double.with_options(retries=0), Task)
    assert double.__doc__ == "A task that returns twice the number."
    with pytest.raises(AttributeError, match="no_such_member"):
        double.no_such_member  # noqa: B018


@pytest.mark.usefixtures("prefect")
def test_it_runs_as_a_task_of_a_flow() -> None:
    from prefect import flow

    @flow
    def both() -> tuple[int, int]:
        return double(1), double.submit(2).result()

    assert both() == (2, 4)


def test_modules_with_tasks_are_imported_without_prefect() -> None:
    program = (
        "import sys, nodesweep.tasks.dataset.files, nodesweep.tasks.jobs.training_jobs\n"
        "import nodesweep.tasks.report.publish\n"
        "assert 'prefect' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
