"""Slurm's view of all jobs of this user, from one squeue a second at most.

Jobs that slurmctld has forgotten are looked up in the accounting, if the cluster has any.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from nodesweep.launch.slurm.commands import CommandFailed, run
from nodesweep.polling import ENDING_CLOCK, Clock

POLL_SECONDS = 1.0
"""Shortest time between two polls of slurmctld: a squeue is an RPC that locks its job list."""
_COLUMNS = {
    "JobID": 16, "Name": 80, "State": 24, "Reason": 64, "NumNodes": 8, "SubmitTime": 24,
    "StartTime": 24, "EndTime": 24, "exit_code": 12, "RestartCnt": 8,
    "tres-alloc": 240,
}  # fmt: skip
_ACCOUNTING_COLUMNS = (
    "JobIDRaw", "JobName", "State", "Reason", "NNodes", "Submit", "Start", "End", "ExitCode",
    "AllocTRES",
)  # fmt: skip
"""The same columns but the restarts, which sacct of Slurm 22.05 does not have."""
_BILLING = re.compile(r"\bbilling=(\d+)")
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
    billing: int | None = None

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
        clock: the source of time; a run that is being cancelled polls for the jobs that it stops.
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
            CommandFailed: slurmctld did not answer.
        """
        with self._lock:
            age_seconds = self.clock.monotonic() - self._polled_at
            if self._rows is None or age_seconds >= POLL_SECONDS or self._polled_at < not_before:
                self.clock.sleep(max(0.0, POLL_SECONDS - age_seconds))
                self._rows, self._polled_at = None, self.clock.monotonic()
                columns = ",".join(f"{name}:{width}|" for name, width in _COLUMNS.items())
                command = [
                    "squeue", "--me", "--all", "--states=all", "--noheader", f"--Format={columns}",
                ]  # fmt: skip
                self._rows = read_rows(self.run(command))
            return self._rows

    def forget(self) -> None:
        """Let the next call of rows() poll, since a job was submitted."""
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
            lines = (line.rpartition("|") for line in self.run(command).splitlines())
            return read_rows("".join(f"{line}|0|{tres}|\n" for line, _, tres in lines))
        except CommandFailed as error:
            if "accounting storage is disabled" not in error.words:
                raise
            self._has_accounting = False
            return ()


def read_rows(text: str) -> tuple[Row, ...]:
    """Read the rows of squeue or sacct; other lines, such as a site's banner, are ignored."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.removesuffix("|").split("|")]
        if len(cells) != len(_COLUMNS) or not cells[0].isdecimal():
            continue
        job_id, name, state, reason, nodes, submitted, started, ended, status, restarts, tres = (
            cells
        )
        state, _, comment = state.partition(" ")  # CANCELLED by 1000
        found.append(
            Row(
                int(job_id), name, state, comment or (reason if reason != "None" else None),
                int(nodes) if nodes.isdecimal() else 1,
                _time(submitted),
                # Slurm's guesses of a start and an end are left out.
                None if state in _NOT_STARTED else _time(started),
                None if state in _NOT_ENDED else _time(ended),
                _exit_status(status),
                int(restarts) if restarts.isdecimal() else 0,
                int(billing[1]) if (billing := _BILLING.search(tres)) else None,
            )
        )  # fmt: skip
    return tuple(found)


def _exit_status(text: str) -> int | None:
    """Return a wait status; sacct writes it as EXIT_CODE:SIGNAL."""
    code, colon, signal = text.partition(":")
    if not code.isdecimal() or (colon and not signal.isdecimal()):
        return None
    return int(code) << 8 | int(signal) if colon else int(code)


def _time(text: str) -> datetime | None:
    """Return the UTC time; None for N/A, Unknown and None."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
