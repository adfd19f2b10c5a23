from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodesweep.launch.slurm.queue import Row
from nodesweep.launch.slurm.status import (
    Submission,
    never_starts,
    read_runs,
    read_status,
    status_of_forgotten,
)
from nodesweep.scaling.job import PhaseVisit
from nodesweep.scaling.outcome.outcome import is_retryable, read_outcome

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = Submission("job", 2, "gpu", 12, T0.timestamp())


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def run(start: float, end: float | None = None) -> PhaseVisit:
    return PhaseVisit("Training", at(start), None if end is None else at(end))


def row(state: str, **changes: Any) -> Row:
    ended = Row(12, "job", state, None, 2, at(0), at(10), at(70), 0, 0)
    return replace(ended, **changes)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("COMPLETED", "completed"),
        ("CANCELLED", "stopped"),
        ("TIMEOUT", "stopped"),
        ("DEADLINE", "stopped"),
        ("FAILED", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("NODE_FAIL", "failed"),
        ("BOOT_FAIL", "failed"),
        ("PREEMPTED", "failed"),
        ("PENDING", "running"),
        ("SUSPENDED", "running"),
        ("A_STATE_OF_THE_FUTURE", "running"),
    ],
)
def test_state(state: str, expected: str) -> None:
    assert read_status(JOB, row(state)).state == expected


def test_reasons(snapshot: Any) -> None:
    rows = {
        "exit code": row("FAILED", exit_status=1 << 8),
        "signal": row("FAILED", exit_status=9),
        "no log": row("FAILED", exit_status=53),
        "second submission": row("FAILED", exit_status=96 << 8),
        "no exit status": row("FAILED", exit_status=None, reason="NonZeroExitCode"),
        "cancelled by": row("CANCELLED", reason="by 1000"),
        **{
            state: row(state)
            for state in (
                "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY",
                "PENDING", "PREEMPTED", "REVOKED", "RUNNING", "TIMEOUT",
            )
        },
    }  # fmt: skip
    reasons = {name: read_status(JOB, each).reason for name, each in rows.items()}
    stopped = replace(JOB, stop_reason="stopped on request")
    reasons["stopped"] = read_status(stopped, row("CANCELLED")).reason
    assert reasons == snapshot


def test_only_what_the_cluster_did_is_worth_another_attempt() -> None:
    states = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "FAILED", "OUT_OF_MEMORY")
    reasons = {state: read_status(JOB, row(state, exit_status=256)).reason for state in states}
    retried = [state for state in states if is_retryable("Failed", reasons[state])]
    assert retried == ["BOOT_FAIL", "NODE_FAIL", "PREEMPTED"]


def test_a_job_that_has_ended_for_slurm_but_still_cleans_up_has_not_ended() -> None:
    assert read_status(JOB, row("CANCELLED", ended_at=None)).state == "stopping"
    assert read_status(JOB, row("COMPLETING", ended_at=None)).state == "stopping"


def test_a_job_that_was_cancelled_in_the_queue_costs_nothing() -> None:
    job = read_status(JOB, row("CANCELLED", started_at=at(5), ended_at=at(5)))
    assert (job.started_at, job.billed_seconds, job.ended_at) == (None, 0.0, at(5))


def test_the_time_of_all_runs_is_billed() -> None:
    again = row("COMPLETED", submitted_at=at(105), started_at=at(110), ended_at=at(150), restarts=1)
    first, second = run(10, 100), run(110, 150)
    job = read_status(replace(JOB, runs=(first, second)), again)
    assert (job.created_at, job.started_at, job.billed_seconds) == (at(0), at(10), 130.0)
    assert job.phase_seconds == {"Pending": 10.0, "Training": 130.0}
    # the accounting does not count restarts
    accounted = read_status(replace(JOB, runs=(first, second)), replace(again, restarts=0))
    assert accounted == job
    # the end of the first run is unknown: never less than it may have cost
    killed = read_status(replace(JOB, runs=(run(10), second)), again)
    assert (killed.billable_seconds, killed.billed_seconds) == (None, 140.0)


def test_runs_are_read_in_spite_of_damage() -> None:
    began = int(T0.timestamp())
    text = (
        f"start {began}\nend {began + 60} 143\nend\nstart x\nsta\nstart {began + 70}\nend {began}"
    )
    assert read_runs(text.rpartition("\nstart")[0]) == ([run(0, 60)], 143)
    assert read_runs(text) == ([run(0, 60), run(70)], None)
    assert read_runs(f"end {began} 0\n") == read_runs("") == ([], None)


def test_forgotten_jobs(snapshot: Any) -> None:
    completed = replace(JOB, runs=(run(10, 70),), exit_code=0)
    failed = replace(JOB, runs=(run(10, 70),), exit_code=3)
    stopped = replace(failed, stop_reason="stopped on request")
    killed = replace(JOB, runs=(run(10),))
    jobs = {
        name: status_of_forgotten(job)
        for name, job in {
            "completed": completed, "failed": failed, "stopped": stopped, "killed": killed,
            "never started": JOB,
        }.items()
    }  # fmt: skip
    assert {
        name: (job.state, job.billed_seconds, job.reason) for name, job in jobs.items()
    } == snapshot


def test_a_job_beyond_a_limit_of_its_own_never_starts() -> None:
    def waits_for(reason: str | None) -> Row:
        return Row(12, "job", "PENDING", reason, 2, at(0), None, None, None, 0)

    # the first as slurmctld with slurmdbd gave it
    assert never_starts(waits_for("AssocMaxNodePerJobLimit"))
    assert never_starts(waits_for("QOSMaxWallDurationPerJobLimit"))
    assert never_starts(waits_for("InvalidQOS"))
    for reason in ("AssocGrpNodeLimit", "Resources", None):
        assert not never_starts(waits_for(reason)), "other jobs' ends may lift it"


def test_an_ended_job_is_billed_on_the_reports_clock() -> None:
    ended = Row(12, "job", "COMPLETED", None, 2, at(0), at(10), at(70), 0, 0, 128)
    status = read_status(JOB, ended)
    outcome = read_outcome(status, None, nodes=2, repeat=1, attempt=1)
    assert (outcome.clocks.billable_seconds, outcome.billing) == (60, 128)
