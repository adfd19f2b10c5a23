"""Read the state of this user's jobs with at most one squeue per second.

Jobs that slurmctld has deleted are looked up in the accounting, if the cluster has it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import TypeAdapter

from nodesweep.launch.slurm.commands import CommandFailed, run
from nodesweep.polling import ENDING_CLOCK, Clock
from nodesweep.scaling.job import FINAL_STATES, JobState

POLL_SECONDS = 1.0
"""Minimum seconds between two polls of slurmctld, because a squeue locks its job list."""
STATES: Mapping[str, JobState] = {
    "COMPLETED": "completed",
    "CANCELLED": "stopped",
    "TIMEOUT": "stopped",
    "DEADLINE": "stopped",
    "COMPLETING": "stopping",
    **dict.fromkeys(
        (
            "BOOT_FAIL", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
            "RECONFIG_FAIL", "REVOKED",
        ),
        "failed",
    ),
}  # fmt: skip
"""States from slurm.schedmd.com/job_state_codes.html; all others mean that a job waits or runs."""
_SQUEUE = {
    "job_id": "JobID:16", "name": "Name:80", "state": "State:24", "reason": "Reason:64",
    "nodes": "NumNodes:8", "submitted": "SubmitTime:24", "started": "StartTime:24",
    "ended": "EndTime:24", "exit": "exit_code:12", "restarts": "RestartCnt:8",
    "tres": "tres-alloc:240",
}  # fmt: skip
"""squeue's columns and their widths."""
_SACCT = {
    "job_id": "JobIDRaw", "name": "JobName", "state": "State", "reason": "Reason",
    "nodes": "NNodes", "submitted": "Submit", "started": "Start", "ended": "End",
    "exit": "ExitCode", "tres": "AllocTRES", "cpu": "TotalCPU", "allocated": "CPUTimeRAW",
}  # fmt: skip
"""sacct's columns; in Slurm 22.05 it has no number of restarts."""
_BILLING = re.compile(r"\bbilling=(\d+)")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_NOT_STARTED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")


@dataclass(frozen=True)
class Row:
    """A job as Slurm reports it; times are in UTC, and None if unknown or in the future."""

    job_id: int
    name: str
    state: str
    reason: str | None
    nodes: int
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None
    restarts: int
    billing: int | None = None
    cpu_seconds: float | None = None
    """CPU time of all its processes, which only sacct reports."""
    allocated_cpu_seconds: float | None = None


ROW_FILE = TypeAdapter(Row)
"""Writes and reads a row as JSON."""


@dataclass
class Queue:
    """Polls slurmctld for all of this user's jobs at once.

    Attributes:
        run: runs a command.
        clock: the source of time; its waits continue while a run is being cancelled.
    """

    run: Callable[[list[str]], str] = run
    clock: Clock = field(default_factory=lambda: ENDING_CLOCK)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: tuple[Row, ...] | None = None
    _polled_at: float = float("-inf")
    _has_accounting: bool = True

    def rows(self, not_before: float = float("-inf")) -> tuple[Row, ...]:
        """Return the rows of a poll that began after `not_before` and is at most a second old.

        Raises:
            CommandFailed: slurmctld did not respond.
        """
        with self._lock:
            age_seconds = self.clock.monotonic() - self._polled_at
            if self._rows is None or age_seconds >= POLL_SECONDS or self._polled_at < not_before:
                self.clock.sleep(max(0.0, POLL_SECONDS - age_seconds))
                self._rows, self._polled_at = None, self.clock.monotonic()
                columns = ",".join(f"{column}|" for column in _SQUEUE.values())
                command = [
                    "squeue", "--me", "--all", "--states=all", "--noheader", f"--Format={columns}",
                ]  # fmt: skip
                self._rows = read_rows(self.run(command), _SQUEUE)
            return self._rows

    def forget(self) -> None:
        """Make the next call of rows() poll, because a job was submitted."""
        self._rows = None

    def accounted(self, job_id: int) -> tuple[Row, ...]:
        """Return the job's rows in the accounting, or () if the cluster has no accounting."""
        if not self._has_accounting:
            return ()
        # With --allocations, TotalCPU would be 0, because it is summed over the steps.
        command = [
            "sacct", "--jobs", str(job_id), "--parsable2", "--noheader",
            f"--format={','.join(_SACCT.values())}",
        ]  # fmt: skip
        try:
            return read_rows(self.run(command), _SACCT)
        except CommandFailed as error:
            if "accounting storage is disabled" not in error.words:
                raise
            self._has_accounting = False
            return ()


def read_rows(text: str, columns: Mapping[str, str] = _SQUEUE) -> tuple[Row, ...]:
    """Read the rows of squeue or sacct.

    Other lines, such as a site's banner or the steps of a job (12.batch), are ignored.
    """
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == len(columns) + 1 and not cells[-1]:  # the last column ends in "|", too
            cells.pop()
        if len(cells) != len(columns) or not cells[0].isdecimal():
            continue
        cell = dict(zip(columns, cells, strict=True))
        state, _, comment = cell["state"].partition(" ")  # CANCELLED by 1000
        # Slurm's estimates of a future start or end are left out.
        has_ended = STATES.get(state, "running") in FINAL_STATES
        found.append(
            Row(
                job_id=int(cell["job_id"]),
                name=cell["name"],
                state=state,
                reason=comment or (cell["reason"] if cell["reason"] != "None" else None),
                nodes=_number(cell["nodes"]) or 1,
                submitted_at=_time(cell["submitted"]),
                started_at=None if state in _NOT_STARTED else _time(cell["started"]),
                ended_at=_time(cell["ended"]) if has_ended else None,
                exit_status=_exit_status(cell["exit"]),
                restarts=_number(cell.get("restarts", "")) or 0,
                billing=int(weight[1]) if (weight := _BILLING.search(cell["tres"])) else None,
                cpu_seconds=seconds_of(cell.get("cpu", "")),
                allocated_cpu_seconds=_number(cell.get("allocated", "")),
            )
        )
    return tuple(found)


def seconds_of(duration: str) -> float | None:
    """Convert DAYS-HH:MM:SS or MM:SS.mmm to seconds; None for `infinite` and anything else."""
    if (match := _DURATION.fullmatch(duration)) is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _exit_status(text: str) -> int | None:
    """Return a wait status, which sacct prints as EXIT_CODE:SIGNAL."""
    code, colon, signal = text.partition(":")
    if not code.isdecimal() or (colon and not signal.isdecimal()):
        return None
    return int(code) << 8 | int(signal) if colon else int(code)


def _time(text: str) -> datetime | None:
    """Return the UTC time, or None for N/A, Unknown and None."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
