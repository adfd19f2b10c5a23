"""The Slurm launcher, which runs each job as a batch script in a folder on the shared file system.

<folder>/<job name>/
    job.sh      the script; creating it is the claim on the name, and its text is the spec
    job.json    Slurm's job ID, once sbatch has reported it
    owner       ID of the job that may run, linked by the script (script.py)
    runs        the script's starts and ends
    stopped     the reason why the launcher cancelled the job
    ended.json  Slurm's last status, which slurmctld deletes after MinJobAge
    all-reduces the network's times, for predictions (script.py)
    script.log, node-0.log, …, output/
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from nodesweep.configs.atomic import create_atomic, write_atomic
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.errors import JobRefused, QuotaReached
from nodesweep.launch.protocol import HeldJob
from nodesweep.launch.slurm.commands import (
    DEADLINE_SECONDS,
    CommandFailed,
    environment_of_jobs,
    run,
)
from nodesweep.launch.slurm.logs import NodeLogs
from nodesweep.launch.slurm.queue import ROW_FILE, Queue, Row
from nodesweep.launch.slurm.script import (
    SCRIPT,
    is_same_job,
    read_script,
    render,
    secrets_of_script,
)
from nodesweep.launch.slurm.status import (
    PENDING_PHASE,
    Submission,
    never_starts,
    read_runs,
    read_status,
    status_of_forgotten,
)
from nodesweep.polling import Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobStatus
from nodesweep.scaling.outcome.cpu_speed import ALLOCATED_USED
from nodesweep.scaling.secrets import remember_secrets

logger = logging.getLogger("nodesweep.jobs")
_CLAIM, _RECORD, _OWNER, _RUNS = "job.sh", "job.json", "owner", "runs"
_STOP, _ENDED = "stopped", "ended.json"
_RECORD_SECONDS = 5.0
"""Time in seconds to record the job ID after sbatch has reported it."""
_NEW_SECONDS = 120.0
"""Age in seconds from which every poll has seen a job, even if clocks differ a little."""
_OVER = ("Invalid job id", "already completing or completed")
"""Parts of scancel's messages about jobs that have ended."""
_LIMITS = ("SubmitLimit", "MaxSubmitJob", "accounting/QOS policy", "MaxJobCount")
"""Parts of sbatch's messages about limits that no longer apply once other jobs have ended."""
_UNREACHABLE = (
    "Unable to contact slurm controller", "Socket timed out", "Transport endpoint",
    "Zero Bytes were transmitted", "Connection refused", "temporarily unable",
)  # fmt: skip
"""Parts of sbatch's messages after which the job may or may not have been accepted."""


def read_claim(folder: Path) -> str | None:
    """Return the script in a job's folder, or None if there is none.

    The job's secrets are masked from then on, because a command that reads its log may have nothing
    but its name.
    """
    try:
        script = (folder / _CLAIM).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    remember_secrets(secrets_of_script(script))
    return script


@dataclass
class SlurmJobs:
    """Slurm's jobs of this user; a nodesweep.launch.protocol.Launcher.

    Attributes:
        platform: the config's section.
        queue: polls slurmctld.
        submit_seconds: timeout of sbatch.
    """

    platform: SlurmPlatform
    queue: Queue = field(default_factory=Queue)
    submit_seconds: float = DEADLINE_SECONDS

    def render(self, spec: JobSpec) -> Mapping[str, Any]:
        """Return the job's batch script."""
        return render(self.platform, spec)

    def submit(self, spec: JobSpec) -> JobStatus:
        """Start the job, or adopt the existing one of that name, whoever started it.

        Raises:
            JobRefused: Slurm refuses the job, or a job of that name has a different script.
            QuotaReached: a limit on submitted jobs is reached.
            CommandFailed: Slurm did not respond; call again to find out if it has the job.
        """
        claim, script = self._file(spec.name, _CLAIM), self.render(spec)[SCRIPT]
        if create_atomic(claim, script.encode()):
            return self._send(spec)
        if not is_same_job(claim.read_bytes().decode(errors="replace"), script):
            raise JobRefused(
                f"{spec.name} exists with another script, {claim}; resume its sweep with the config"
                " that it began with, or start a new sweep"
            )
        if self._is_sent(spec):
            return self.status(spec.name) or JobStatus(spec.name, "running")
        return self._send(spec)

    def status(self, job_name: str) -> JobStatus | None:
        """Return the job's status, or None if there is no such job."""
        job = self._submission(job_name)
        return None if job is None else self._status(job)

    def describe(
        self, job_names: Iterable[str], take: Callable[[], None] = lambda: None
    ) -> Mapping[str, JobStatus]:
        """Return the status of each given job that exists, from a single poll."""
        take()
        return {name: job for name in job_names if (job := self.status(name)) is not None}

    def logs(self, job_name: str, since: datetime) -> NodeLogs:
        """Return a reader of all lines in the job's folder, since lines have no timestamps."""
        folder = self._file(job_name, "").resolve()
        read_claim(folder)
        return NodeLogs(folder)

    def stop(self, job_name: str) -> bool:
        """Cancel the job; return True if it was still running."""
        job = self._submission(job_name)
        if job is None or self._status(job).has_ended:
            return False
        self._cancel(job, "stopped on request")
        return True

    def release(self, job_name: str) -> None:
        """Do nothing, because Slurm keeps no nodes for an ended job."""

    def jobs_of(self, sweep: str) -> Sequence[JobStatus]:
        """Return the sweep's jobs, oldest first."""
        claims = Path(self.platform.folder).glob(f"{names.job_prefix(sweep)}*/{_CLAIM}")
        mine = [name for each in claims if names.sweep_of_job(name := each.parent.name) == sweep]
        found = map(self._submission, mine)
        jobs = sorted((job for job in found if job is not None), key=lambda job: job.job_id)
        return [self._status(job) for job in jobs]

    def held(self) -> Iterator[HeldJob]:
        """Yield this user's queued and running jobs in this folder; see Launcher.

        The name of a job's folder identifies its sweep, so no tag is needed. Ages are by this
        node's clock, which munge requires to be within 5 minutes of the cluster's. Unlike status(),
        this cancels no jobs and only queries the queue.
        """
        rows, now = sorted(self.queue.rows(), key=lambda row: row.job_id), time.time()
        for row in rows:
            job = self._submission(row.name) if names.sweep_of_job(row.name) else None
            if job is None or job.job_id != row.job_id:
                continue
            status = read_status(job, row)
            if status.state == "running" and status.created_at is not None:
                age_seconds = now - status.created_at.timestamp()
                yield HeldJob(job.name, age_seconds, True, partial(names.sweep_of_job, job.name))

    def cpu_use(self, job_name: str) -> Mapping[str, float]:
        """Return the CPU use of an ended job in percent from sacct, or {} if it is unknown.

        A cluster without jobacct_gather reports 0 s of CPU time, which counts as unknown.
        """
        job = self._submission(job_name)
        row = job and _row_of(job, self.queue.accounted(job.job_id))
        if not (row and row.cpu_seconds and row.allocated_cpu_seconds):
            return {}
        if row.started_at is None or row.ended_at is None or row.ended_at <= row.started_at:
            return {}
        seconds = (row.ended_at - row.started_at).total_seconds()
        found = {"cpu_percent": 100 * row.cpu_seconds / (seconds * row.nodes)}
        if not self.platform.node.gpus:  # otherwise, the GPUs do the work
            found[ALLOCATED_USED] = 100 * row.cpu_seconds / row.allocated_cpu_seconds
        return found

    def _file(self, job_name: str, name: str) -> Path:
        return Path(self.platform.folder, job_name, name)

    def _text(self, job_name: str, name: str) -> str | None:
        """Return the text of one of the job's files, or None if it does not exist."""
        try:
            return self._file(job_name, name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def _send(self, spec: JobSpec) -> JobStatus:
        """Submit the claimed job and record its job ID."""
        claim = self._file(spec.name, _CLAIM)
        try:
            sbatch = shutil.which("sbatch") or "sbatch"
            command = [sbatch, "--parsable", "--export=ALL", str(claim)]
            answer = run(command, self.submit_seconds, environment_of_jobs(sbatch))
        except CommandFailed as error:
            if not error.words or any(words in error.words for words in _UNREACHABLE):
                raise
            claim.unlink(missing_ok=True)  # Slurm refused it, so there is no such job
            kind = QuotaReached if any(words in error.words for words in _LIMITS) else JobRefused
            raise kind(f"Slurm refused {spec.name}: {error.words}") from error
        # "1234", or "1234;cluster" on a federation, in the last line
        found = re.search(r"^(\d+)(;.*)?$", answer.strip().rpartition("\n")[2])
        if found is None:
            raise CommandFailed(f"sbatch reported no job id for {spec.name}: {answer!r}")
        job_id = int(found[1])
        self._record(spec.name, job_id, time.time())
        self.queue.forget()
        job = self._submission(spec.name)
        if job is not None and job.job_id != job_id:
            logger.info(
                "%s is already job %d; cancelling the duplicate %d", spec.name, job.job_id, job_id
            )
            run(["scancel", str(job_id)])
        status = JobStatus(spec.name, "running", PENDING_PHASE, nodes=spec.nodes)
        return replace(status, instance_type=spec.instance_type)

    def _record(self, job_name: str, job_id: int, submitted_at: float) -> None:
        """Record the job's ID, unless one is recorded already."""
        body = names.pretty_json({"job_id": job_id, "submitted_at": submitted_at})
        create_atomic(self._file(job_name, _RECORD), body)

    def _submission(self, job_name: str) -> Submission | None:
        """Return the job in a folder if Slurm has accepted it, or None.

        If the process that submitted the job was killed before it recorded the job ID, the queue is
        searched for the name. Of several jobs, the first one counts.
        """
        script = read_claim(self._file(job_name, ""))
        if script is None:
            return None
        record = self._text(job_name, _RECORD)
        if record is None:
            sent = [row for row in self.queue.rows() if row.name == job_name]
            if not sent:
                return None
            first = min(sent, key=lambda row: row.job_id)
            at = time.time() if first.submitted_at is None else first.submitted_at.timestamp()
            self._record(job_name, first.job_id, at)
            record = self._text(job_name, _RECORD) or "{}"
        values = json.loads(record)
        # If there are two jobs of the name, the script's own claim decides.
        owner = self._text(job_name, _OWNER) or ""
        return Submission(
            job_name,
            *read_script(script),
            int(owner) if owner.isdecimal() else values["job_id"],
            values["submitted_at"],
            self._text(job_name, _STOP),
            *read_runs(self._text(job_name, _RUNS) or ""),
        )

    def _is_sent(self, spec: JobSpec) -> bool:
        """Return True if a claimed job was submitted, or False if the submission was lost.

        A different process may have claimed the job and be waiting for sbatch, so wait for it. If
        it takes longer than sbatch's timeout, two jobs are submitted, and only one of them runs.
        """
        claim = self._file(spec.name, _CLAIM)
        while self._submission(spec.name) is None:
            try:
                age_seconds = time.time() - claim.stat().st_mtime
            except FileNotFoundError:  # Slurm refused the other process's job
                age_seconds = math.inf
                create_atomic(claim, self.render(spec)[SCRIPT].encode())
            if age_seconds > self.submit_seconds + _RECORD_SECONDS:
                return False
            Clock().sleep(1.0)
        return True

    def _status(self, job: Submission) -> JobStatus:
        """Return the job's status from squeue, sacct, or the job's own files."""
        last = self._text(job.name, _ENDED)
        row = self._row(job) if last is None else ROW_FILE.validate_json(last)
        status = status_of_forgotten(job) if row is None else read_status(job, row)
        if row is not None and last is None:
            if status.has_ended:
                write_atomic(self._file(job.name, _ENDED), ROW_FILE.dump_json(row))
            elif never_starts(row):
                self._cancel(job, f"{row.reason}: Slurm can never start the job")
        isolation = "whole nodes (--exclusive)" if self.platform.exclusive else "shared nodes"
        name = self.platform.cluster
        return replace(status, region=name, cluster=name, isolation=isolation)

    def _row(self, job: Submission) -> Row | None:
        """Return the job's row from squeue, or from sacct if squeue has none; None if unknown."""
        row = _row_of(job, self.queue.rows())
        if row is None and abs(time.time() - job.submitted_at) < _NEW_SECONDS:
            # The last poll may have been before another process submitted the job.
            row = _row_of(job, self.queue.rows(not_before=self.queue.clock.monotonic()))
        if row is not None:
            return row
        try:
            return _row_of(job, self.queue.accounted(job.job_id))
        except CommandFailed as error:
            if job.exit_code is None:
                raise
            logger.warning("%s; using the end time that the script of %s recorded", error, job.name)
            return None

    def _cancel(self, job: Submission, reason: str) -> None:
        """Cancel the job; do nothing if it has just ended."""
        mark = self._file(job.name, _STOP)
        is_marked = create_atomic(mark, reason.encode())
        try:
            run(["scancel", str(job.job_id)])
        except CommandFailed as error:
            if not any(words in error.words for words in _OVER):
                if is_marked:
                    mark.unlink(missing_ok=True)
                raise


def _row_of(job: Submission, rows: Sequence[Row]) -> Row | None:
    # A slurmctld that lost its state reuses job IDs, so the name must match too.
    mine = (job.job_id, job.name)
    return next((row for row in rows if (row.job_id, row.name) == mine), None)
