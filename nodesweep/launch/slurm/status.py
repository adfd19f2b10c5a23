"""Convert Slurm's report on a job, and the job's own records, to a JobStatus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from nodesweep.launch.slurm.queue import STATES, Row
from nodesweep.launch.slurm.script import NOT_THE_OWNER
from nodesweep.scaling.job import (
    FINAL_STATES,
    OVER_TIME,
    TRAINING_PHASE,
    JobStatus,
    PhaseVisit,
)

PENDING_PHASE = "Pending"
_MEANINGS = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "the job was cancelled, but not by nodesweep",
    "DEADLINE": "the job could not end by its deadline",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "the program exceeded the memory that Slurm allocated",
    "PREEMPTED": "a job with higher priority took the nodes",
}
_NO_LOG = 53
"""Wait status of a job whose script.log slurmd could not open; sacct prints it as 0:53."""
_NEVER_STARTS = frozenset(
    {
        "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
        "InvalidQOS", "PartitionTimeLimit", "QOSNotAllowed",
    }
)  # fmt: skip
"""Reasons why a pending job never starts unless the job or the cluster's limits are changed.

PartitionNodeLimit is not included, because jobs that wait for down nodes have it too.
"""
_OF_ONE_JOB = "PerJobLimit"
"""Suffix of reasons for exceeding a limit of the account or QOS that applies to a single job."""


@dataclass(frozen=True)
class Submission:
    """A job that Slurm accepted.

    Attributes:
        name: the job's name.
        nodes: number of nodes.
        instance_type: type of the nodes.
        job_id: Slurm's job ID.
        submitted_at: Unix seconds, by the clock of the machine that submitted the job.
        stop_reason: why the launcher cancelled the job, or None if it did not.
        runs: the runs of the script, as recorded by it; a run that was killed has no end.
        exit_code: exit code of the last run, or None if it is unknown.
    """

    name: str
    nodes: int
    instance_type: str
    job_id: int
    submitted_at: float
    stop_reason: str | None = None
    runs: Sequence[PhaseVisit] = ()
    exit_code: int | None = None


def never_starts(row: Row) -> bool:
    """Return True if the pending job can't start unless the job or the cluster is changed."""
    reason = row.reason or ""
    return row.state == "PENDING" and (reason in _NEVER_STARTS or reason.endswith(_OF_ONE_JOB))


def read_runs(text: str) -> tuple[list[PhaseVisit], int | None]:
    """Read the records of a job's script: "start SECONDS" and "end SECONDS EXIT_CODE".

    A requeued job has several runs. Damaged lines are ignored.

    Returns:
        The runs, and the exit code of the last run or None if it is unknown.
    """
    runs, exit_code = list[PhaseVisit](), None
    for line in text.splitlines():
        match line.split():
            case ["start", seconds] if seconds.isdecimal():
                started_at, exit_code = datetime.fromtimestamp(int(seconds), UTC), None
                runs.append(PhaseVisit(TRAINING_PHASE, started_at, None))
            case ["end", seconds, code] if runs and seconds.isdecimal() and code.isdecimal():
                runs[-1] = runs[-1]._replace(end=datetime.fromtimestamp(int(seconds), UTC))
                exit_code = int(code)
    return runs, exit_code


def read_status(job: Submission, row: Row) -> JobStatus:
    """Return the job's status from Slurm's row.

    Slurm's row covers only the last run of a requeued job; its script has recorded the earlier
    ones.
    """
    state = STATES.get(row.state, "running")
    if state in FINAL_STATES and row.ended_at is None:
        state = "stopping"
    # A requeue changes the submission time of Slurm's row.
    recorded = datetime.fromtimestamp(int(job.submitted_at), UTC)
    created_at = min(row.submitted_at or recorded, recorded)
    # A job that is cancelled while it waits has the time of the cancellation as its start.
    started_at = row.started_at if row.started_at != row.ended_at or job.runs else None
    has_restarted = row.restarts or len(job.runs) > 1  # the accounting has no number of restarts
    runs = [
        run
        for run in job.runs
        if has_restarted and (run.start is None or not started_at or run.start < started_at)
    ]
    began_at = runs[0].start if runs else started_at
    if started_at is not None:
        runs.append(PhaseVisit(TRAINING_PHASE, started_at, row.ended_at))
    return JobStatus(
        job.name,
        state,
        TRAINING_PHASE if row.state == "RUNNING" else row.state.replace("_", " ").capitalize(),
        message=(row.reason or "") if row.state == "PENDING" else "",
        reason=_reason(row, job.stop_reason) if state in ("failed", "stopped") else None,
        created_at=created_at,
        started_at=began_at,
        changed_at=row.ended_at or started_at or created_at,
        ended_at=row.ended_at if state in FINAL_STATES else None,
        billing_began_at=began_at,
        billing_ended_at=row.ended_at,
        billable_seconds=_busy_seconds(runs) if row.ended_at is not None else None,
        billing=row.billing,
        nodes=job.nodes,
        instance_type=job.instance_type,
        platform_kind="slurm",
        visits=(PhaseVisit(PENDING_PHASE, created_at, began_at), *runs),
    )


def status_of_forgotten(job: Submission) -> JobStatus:
    """Return the status of a job that Slurm has deleted, from the records of its script."""
    code, last = job.exit_code, job.runs[-1] if job.runs else PhaseVisit("", None, None)
    word = "COMPLETED" if code == 0 else "FAILED" if job.stop_reason is None else "CANCELLED"
    row = Row(
        job.job_id, job.name, word, None, job.nodes, None, last.start, last.end,
        None if code is None else code << 8, max(0, len(job.runs) - 1),
    )  # fmt: skip
    status = read_status(job, row)
    if status.has_ended:
        return status
    unknown = (
        f"Slurm has no record of job {job.job_id}, and its script did not record its end: it was"
        " probably killed, or slurmctld lost its state"
    )
    return replace(status, state="failed", phase="Unknown", reason=job.stop_reason or unknown)


def _busy_seconds(runs: Sequence[PhaseVisit]) -> float | None:
    """Return the total seconds of all runs, or None if the end of a run is unknown."""
    stays = [run.end - run.start for run in runs if run.start and run.end]
    return sum(map(timedelta.total_seconds, stays)) if len(stays) == len(runs) else None


def _reason(row: Row, stop_reason: str | None) -> str:
    """Return why the job failed or was stopped."""
    if row.state == "TIMEOUT":
        return f"{OVER_TIME}: the job reached its time limit"
    if row.state == "CANCELLED" and stop_reason is not None:
        return stop_reason
    if row.state == "FAILED":
        meaning = _exit(row.exit_status)
    else:
        meaning = _MEANINGS.get(row.state, f"job {row.job_id} ended")
    return f"{row.state}: {meaning}" + (f" ({row.reason})" if row.reason else "")


def _exit(status: int | None) -> str:
    """Describe how a script ended, according to its wait status."""
    if status is None:
        return "the exit code of the script is unknown"
    if status == _NO_LOG:
        return (
            "Slurm could not write the job's log on the node: platform.folder must be a folder that"
            " all nodes share"
        )
    if os.WIFSIGNALED(status):
        return f"the script was killed by signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    if code == NOT_THE_OWNER:
        return "another job of this name was submitted first"
    return f"the script ended with exit code {code}"
