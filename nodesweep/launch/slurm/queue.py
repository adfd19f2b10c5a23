"""Slurm's view of all jobs of this user, from one squeue a second at most.

Jobs that slurmctld has forgotten are looked up in the accounting, if the cluster has any.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from nodesweep.launch.slurm.commands import CommandFailed, run

POLL_SECONDS = 1.0
"""Shortest time between two polls of slurmctld: a squeue is an RPC that locks its job list."""
_COLUMNS = {
    "JobID": 16,
    "Name": 80,
    "State": 24,
    "Reason": 64,
    "NumNodes": 8,
    "SubmitTime": 24,
    "StartTime": 24,
    "EndTime": 24,
    "exit_code": 12,
    "RestartCnt": 8,
}
_ACCOUNTING_COLUMNS = (
    "JobIDRaw", "JobName", "State", "Reason", "NNodes", "Submit", "Start", "End", "ExitCode",
    "Restarts",
)  # fmt: skip
_NOT_STARTED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
_NOT_ENDED = (
    *_NOT_STARTED, "RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
    "SUSPENDED",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A job in Slurm's words; times in UTC, None if they are unknown or still to come."""

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

    def to_json(self) -> str:
        """Return the row as JSON."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> Row:
        """Return the row that to_json() wrote."""
        values = json.loads(text)
        for name in ("submitted_at", "started_at", "ended_at"):
            values[name] = values[name] and datetime.fromisoformat(values[name])
        return cls(**values)


@dataclass
class Queue:
    """Polls slurmctld for all of this user's jobs at once.

    Attributes:
        run: runs a command.
        monotonic: a clock, in seconds.
        sleep: sleeps for that many seconds.
    """

    run: Callable[[list[str]], str] = run
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: tuple[Row, ...] | None = None
    _polled_at: float = float("-inf")
    _has_accounting: bool = True

    def rows(self, not_before: float = float("-inf")) -> tuple[Row, ...]:
        """Return the rows of a poll that began after `not_before` and is at most a second old.

        Raises:
            CommandFailed: slurmctld did not answer.
        """
        with self._lock:
            age_seconds = self.monotonic() - self._polled_at
            if self._rows is None or age_seconds >= POLL_SECONDS or self._polled_at < not_before:
                self.sleep(max(0.0, POLL_SECONDS - age_seconds))
                self._rows, self._polled_at = None, self.monotonic()
                columns = ",".join(f"{name}:{width}|" for name, width in _COLUMNS.items())
                command = ["squeue", "--me", "--states=all", "--noheader", f"--Format={columns}"]
                self._rows = read_squeue(self.run(command))
            return self._rows

    def forget(self) -> None:
        """Let the next call of rows() poll, since a job was submitted."""
        with self._lock:
            self._rows = None

    def accounted(self, job_ids: Iterable[int]) -> tuple[Row, ...]:
        """Return the jobs as the accounting knows them; none if the cluster has no accounting."""
        ids = ",".join(str(job_id) for job_id in job_ids)
        if not ids or not self._has_accounting:
            return ()
        command = [
            "sacct", "--jobs", ids, "--allocations", "--parsable2", "--noheader",
            f"--format={','.join(_ACCOUNTING_COLUMNS)}",
        ]  # fmt: skip
        try:
            return read_sacct(self.run(command))
        except CommandFailed as error:
            if "accounting storage is disabled" not in error.words:
                raise
            self._has_accounting = False
            return ()


def read_squeue(text: str) -> tuple[Row, ...]:
    """Read the rows of squeue; lines of other programs, such as a site's banner, are ignored."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")][:-1]
        if len(cells) != len(_COLUMNS) or not cells[0].isdecimal():
            continue
        job_id, name, state, reason, nodes, submitted, started, ended, status, restarts = cells
        found.append(
            Row(
                int(job_id), name, state, reason if reason != "None" else None,
                int(nodes) if nodes.isdecimal() else 1,
                _time(submitted),
                # Slurm's guesses of a start and an end are left out.
                None if state in _NOT_STARTED else _time(started),
                None if state in _NOT_ENDED else _time(ended),
                int(status) if status.isdecimal() else None,
                int(restarts) if restarts.isdecimal() else 0,
            )
        )  # fmt: skip
    return tuple(found)


def read_sacct(text: str) -> tuple[Row, ...]:
    """Read the rows of sacct, whose states may have a comment: CANCELLED by 1000."""
    found = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != len(_ACCOUNTING_COLUMNS) or not cells[0].isdecimal():
            continue
        job_id, name, state, reason, nodes, submitted, started, ended, code, restarts = cells
        word, _, comment = state.partition(" ")
        exit_code, _, signal = code.partition(":")
        status = (
            int(exit_code) << 8 | int(signal)
            if exit_code.isdecimal() and signal.isdecimal()
            else None
        )
        found.append(
            Row(
                int(job_id), name, word, comment or (reason if reason != "None" else None),
                int(nodes) if nodes.isdecimal() else 1,
                _time(submitted), _time(started), _time(ended), status,
                int(restarts) if restarts.isdecimal() else 0,
            )
        )  # fmt: skip
    return tuple(found)


def _time(text: str) -> datetime | None:
    """Return the UTC time; None for N/A, Unknown and None."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
