"""The order in which the jobs of several queues start in a shared room."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.jobs.queue import JobQueue, SharedRoom, SingleJobRoom, Waiting


def queued(queue: JobQueue[Any], arrival: float, name: str) -> Any:
    job = SimpleNamespace(
        run_name=name,
        creation_time=arrival,
        instance_type="ml.local.small",
        instance_count=1,
        longest_wait=lambda now: (math.inf, None),
    )
    queue.append(Waiting(job, not_before=arrival, faults=JobFaults()))  # type: ignore[arg-type]
    return job


@pytest.mark.parametrize("is_stopped", [False, True])
def test_jobs_of_two_queues_start_in_order_of_arrival(is_stopped: bool) -> None:
    room = SharedRoom(SingleJobRoom())
    training: JobQueue[Any] = JobQueue(room)
    processing: JobQueue[Any] = JobQueue(room)
    first, second = queued(training, 1, "first"), queued(processing, 2, "second")
    third = queued(training, 3, "third")
    assert training.take_ready(4).job is first  # type: ignore[union-attr]
    assert processing.take_ready(4) is None
    room.release(first)
    assert training.take_ready(5) is None, "the second job arrived earlier"
    if is_stopped:
        processing.remove(second)
    else:
        assert processing.take_ready(5).job is second  # type: ignore[union-attr]
        assert training.take_ready(5) is None
        room.release(second)
    assert not room.fits(third), "the third job waits"
    assert training.take_ready(6).job is third  # type: ignore[union-attr]
