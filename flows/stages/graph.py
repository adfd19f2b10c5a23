"""The stages of a run as Prefect's graph shows them: one task run for each, which opens by a click
on the task runs of what it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.transactions import CommitMode, transaction

from nodesweep.tasks.cancelling import cancelled_as_state, raising_cancelled
from nodesweep.tasks.events import Stage, stage

_T = TypeVar("_T")


def in_stage(name: Stage, call: Callable[[], _T]) -> _T:
    """Carry out a stage in a task run of its name; the views are told when it begins and ends.

    It has no retries and keeps no result: a retried flow run goes through all its stages, as the
    sweep's own record tells what is done. It has no parameters either, of which Prefect would look
    through the config. What it calls commits at once, so that where the stage fails later
    Prefect does not mark that as rolled back.
    """

    @task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)
    @cancelled_as_state
    def carried_out() -> _T:
        with stage(name), transaction(commit_mode=CommitMode.EAGER):
            return call()

    return raising_cancelled(carried_out)
