"""Show stages as task runs in Prefect's graph, which expand to the task runs of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from prefect.transactions import CommitMode, transaction

from nodesweep.events import Stage, stage
from nodesweep.tasks.task import as_task

_T = TypeVar("_T")


def in_stage(name: Stage, call: Callable[[], _T]) -> _T:
    """Run a stage in a task run of the same name, and announce its start and end to the views.

    The task has no retries and stores no result, because a retried flow run repeats all stages and
    the sweep's record shows what is done. It has no parameters, because Prefect would search the
    config for task runs. Nested calls commit eagerly, so that Prefect does not mark them as rolled
    back if the stage fails later.
    """

    def carried_out() -> _T:
        with stage(name), transaction(commit_mode=CommitMode.EAGER):
            return call()

    return as_task(name, carried_out, task_run_name=name, persist_result=False)()
