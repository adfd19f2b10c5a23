"""A launcher whose jobs exist in memory only, for tests and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from nodesweep.errors import JobRefused, QuotaReached
from nodesweep.launch.protocol import HeldJob
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobState, JobStatus, PhaseVisit

START = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class MemoryLog:
    """The lines of a job since a time, in Unix milliseconds."""

    lines: list[tuple[int, str]]
    since: int
    read: int = 0
    location: str = "memory"
    has_more: bool = False

    def new_lines(self) -> list[tuple[int, str]]:
        """Return the lines that were not read yet."""
        new, self.read = self.lines[self.read :], len(self.lines)
        return [line for line in new if line[0] >= self.since]


@dataclass
class MemoryLauncher:
    """Jobs that run until end() or stop(), on a clock that moves by a second with every change."""

    nodes: int = 8
    """Number of nodes that all running jobs can have together."""
    now: datetime = START
    _specs: dict[str, JobSpec] = field(default_factory=dict)
    _jobs: dict[str, JobStatus] = field(default_factory=dict)
    _lines: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def _tick(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def render(self, spec: JobSpec) -> Mapping[str, Any]:
        """Return what a job is made of."""
        named = {"name": spec.name, "attempt": spec.attempt} if spec.name else {}
        asked = spec.training.model_dump(mode="json")
        return {**named, "nodes": spec.nodes, "training": asked, "variables": dict(spec.variables)}

    def submit(self, spec: JobSpec) -> JobStatus:
        """Start or adopt a job."""
        if spec.name in self._specs:
            if self._specs[spec.name] != spec:
                raise JobRefused(f"{spec.name} exists with a different spec")
            return self._jobs[spec.name]
        running = sum(job.nodes for job in self._jobs.values() if not job.has_ended)
        if running + spec.nodes > self.nodes:
            raise QuotaReached(f"{spec.name}: {self.nodes - running} nodes are left")
        self._specs[spec.name] = spec
        self._jobs[spec.name] = JobStatus(
            spec.name,
            "running",
            phase="Training",
            created_at=self._tick(),
            started_at=self._tick(),
            billing_began_at=self.now,
            nodes=spec.nodes,
            instance_type=spec.instance_type,
        )
        return self._jobs[spec.name]

    def status(self, job_name: str) -> JobStatus | None:
        """Return a job's status."""
        return self._jobs.get(job_name)

    def describe(
        self, job_names: Iterable[str], take: Callable[[], None] = lambda: None
    ) -> dict[str, JobStatus]:
        """Return the statuses of known jobs; all of them take one call."""
        take()
        return {name: self._jobs[name] for name in job_names if name in self._jobs}

    def logs(self, job_name: str, since: datetime) -> MemoryLog:
        """Return a reader of the lines that say() adds."""
        return MemoryLog(self._lines.setdefault(job_name, []), int(since.timestamp() * 1000))

    def say(self, job_name: str, text: str) -> None:
        """Add a line of the job's first node."""
        at = int(self._tick().timestamp() * 1000)
        self._lines.setdefault(job_name, []).append((at, f"node-1: {text}"))

    def stop(self, job_name: str) -> bool:
        """Stop a job at once."""
        job = self._jobs.get(job_name)
        if job is None or job.has_ended:
            return False
        self.end(job_name, "stopped", "stopped on request")
        return True

    def release(self, job_name: str) -> None:
        """Do nothing: no nodes are kept for an ended job."""

    def jobs_of(self, sweep: str) -> Sequence[JobStatus]:
        """Return the sweep's jobs."""
        return [job for name, job in self._jobs.items() if names.sweep_of_job(name) == sweep]

    def held(self) -> Sequence[HeldJob]:
        """Return all running jobs; each is of the sweep that its name says."""
        return [
            HeldJob(
                name,
                (self.now - (job.created_at or START)).total_seconds(),
                True,
                partial(names.sweep_of_job, name),
            )
            for name, job in self._jobs.items()
            if not job.has_ended
        ]

    def end(self, job_name: str, state: JobState, reason: str | None = None) -> None:
        """End a running job."""
        job, at = self._jobs[job_name], self._tick()
        assert job.started_at is not None
        self._jobs[job_name] = replace(
            job,
            state=state,
            phase=state.capitalize(),
            reason=reason,
            ended_at=at,
            changed_at=at,
            billing_ended_at=at,
            visits=(PhaseVisit("Training", job.started_at, at),),
        )
