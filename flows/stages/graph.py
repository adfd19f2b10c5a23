"""Stages as task runs in Prefect's graph; each expands to the task runs of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.transactions import CommitMode, transaction

from nodesweep.events import Stage, stage
from nodesweep.tasks.cancelling import reraising_cancel, returning_cancelled_state

_T = TypeVar("_T")


def in_stage(name: Stage, call: Callable[[], _T]) -> _T:
    """Run a stage in a task run of the same name, and announce its start and end to the views.

    The task has no retries and stores no result, because a retried flow run repeats all stages and
    the sweep's record knows what is done. It has no parameters, because Prefect would search the
    config for task runs. Nested calls commit eagerly, so that Prefect does not mark them as rolled
    back if the stage fails later.
    """

    @task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)
    @returning_cancelled_state
    def carried_out() -> _T:
        with stage(name), transaction(commit_mode=CommitMode.EAGER):
            return call()

    return reraising_cancel(carried_out)
