"""`nodesweep logs`: the log lines of a sweep's jobs, with time, job and node.

Logs of ended jobs are read from files next to the report, which are fetched first if missing; logs
of running jobs come from the backend. A stopped local platform is not started.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nodesweep.cli.local_platform import own_platform
from nodesweep.cli.output import print_text
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RunFailed, SweepNotFound, best_effort
from nodesweep.launch.protocol import JobLog
from nodesweep.launch.registry import backend_of
from nodesweep.launch.saved_logs import is_saved, read_saved_log, saved_files
from nodesweep.polling import Clock, intervals
from nodesweep.scaling import names
from nodesweep.scaling.arms import arms_of
from nodesweep.scaling.job import JobStatus, LogLine
from nodesweep.scaling.outcome.plain_lines import rank_of
from nodesweep.scaling.outcome.program_log import host_of_rank
from nodesweep.scaling.planning.plan import processes_per_node
from nodesweep.scaling.secrets import hide_in_text
from nodesweep.tasks.sweeps.claims import read_validation_claims
from nodesweep.tasks.sweeps.owner import read_heartbeat
from nodesweep.tasks.sweeps.stop import platform_of_jobs

_OF_VALIDATION = 0
"""Placeholder for the node count in a validation job's key."""


@dataclass(frozen=True)
class LogFilter:
    """Filter on log lines; None means no restriction."""

    nodes: int | None = None
    rank: int | None = None
    validation: bool = False
    """True to match only the Processing job that validated the dataset."""

    def matches(self, key: names.JobKey) -> bool:
        """Return True if lines of the job with this key are wanted."""
        if key.nodes == _OF_VALIDATION:
            return self.nodes is None and self.rank is None
        return not self.validation and self.nodes in (None, key.nodes)


def _key_of(job: str) -> names.JobKey:
    """Return a job's key; for a Processing job, `nodes` is a placeholder."""
    attempt = names.attempt_of_validation_job(job)
    return names.parse_job_name(job) or names.JobKey("", _OF_VALIDATION, 0, attempt or 0)


def _key_of_file(name: str) -> names.JobKey | None:
    """Return the key of the job whose log the file contains; None if it is not a log."""
    if (validation := names.parse_validation_log_file(name)) is not None:
        return names.JobKey("", _OF_VALIDATION, 0, validation[0])
    parsed = names.parse_log_file(name)
    return None if parsed is None else parsed[0]


def show_logs(
    config: BenchmarkConfig,
    sweep: str,
    wanted: LogFilter,
    follow_seconds: float | None,
    clock: Clock | None = None,
) -> None:
    """Print a sweep's logs and, with `follow_seconds`, new lines until the sweep ends.

    Args:
        config: The sweep's config.
        sweep: Id of the sweep.
        wanted: Filter on the lines.
        follow_seconds: Maximum time to follow running jobs; None prints only the existing lines.
        clock: Source of time; tests pass a fake clock.

    Raises:
        SweepNotFound: No log matches.
        RunFailed: The sweep has not ended within `follow_seconds`.
    """
    platform = own_platform(config.platform, count_unresponsive=True)
    if platform is None:
        shown = _LogPrinter(config, sweep, wanted)
        shown.print_saved()
        shown.raise_if_nothing_printed()
        return
    config = config.on_platform(platform_of_jobs(backend_of(platform), sweep))
    shown = _LogPrinter(config, sweep, wanted)
    clock = clock or Clock()
    deadline = clock.monotonic() + (follow_seconds or 0.0)
    pauses = intervals(config.sweep.poll_interval_seconds, 4 * config.sweep.poll_interval_seconds)
    while True:
        jobs = _jobs(config, sweep)
        shown.show(jobs)
        if follow_seconds is None or _is_over(config, sweep, jobs):
            break
        if clock.monotonic() >= deadline:
            raise RunFailed(
                f"sweep {sweep} has not ended after {follow_seconds:g} s (--deadline); it is still"
                " running"
            )
        clock.sleep(next(pauses))
    shown.raise_if_nothing_printed()


def _jobs(config: BenchmarkConfig, sweep: str) -> list[JobStatus]:
    """Return the sweep's training and Processing jobs; jobs from lists lack some status fields."""
    backend = backend_of(config.platform)
    launcher = backend.launcher()
    jobs = list(launcher.jobs_of(sweep))
    for first in jobs[:1]:  # registers the values to mask in logs; all jobs of a sweep share them
        launcher.status(first.name)
    if config.dataset is None or not config.dataset.may_use_spark:
        return jobs
    claimed = read_validation_claims(backend.store, sweep)
    return [*jobs, *backend.validations().describe(claimed).values()]


def _is_over(config: BenchmarkConfig, sweep: str, jobs: Iterable[JobStatus]) -> bool:
    """Return True if no job is running and none will be started.

    The sweep is over if its report is newer than the last job, or if no live owner is recorded.
    """
    if any(not job.has_ended for job in jobs):
        return False
    store = backend_of(config.platform).store
    last = max((job.changed_at for job in jobs if job.changed_at is not None), default=None)
    reported = store.written_at(names.report_key(store.prefix, sweep, names.REPORT_JSON))
    if last is not None and reported is not None and reported >= last:
        return True
    owner = read_heartbeat(store, sweep)
    return owner is None or not owner.is_alive


class _LogPrinter:
    """Prints the lines of a sweep's jobs, and tracks which jobs are done or followed."""

    def __init__(self, config: BenchmarkConfig, sweep: str, wanted: LogFilter) -> None:
        self._config, self._sweep, self._filter = config, sweep, wanted
        self._folder = Path(config.report.directory) / sweep / names.LOGS
        self._followed: dict[str, JobLog] = {}
        self._done: set[str] = set()
        self._files = 0

    def print_saved(self) -> None:
        """Print the local files, regardless of the platform's state."""
        self._print_files(sorted(self._folder.glob("*.log")))

    def show(self, jobs: Iterable[JobStatus]) -> None:
        """Print the new lines of running or followed jobs, and all lines of other ended jobs."""
        for job in jobs:
            name = job.name
            if not self._matches(_key_of(name)) or name in self._done:
                continue
            if job.has_ended and name not in self._followed:
                self._save(job)
                self._print_files(saved_files(name, self._folder))
            else:
                assert job.created_at is not None  # in every list and description of jobs
                self._print_new(name, job.created_at)
            if job.has_ended:
                self._done.add(name)

    def _save(self, job: JobStatus) -> None:
        """Save an ended job's log, unless this is done; on failure, an existing copy is kept."""
        if is_saved(job, self._folder):
            return
        has_copy = bool(saved_files(job.name, self._folder))
        with best_effort(f"the log of {job.name} can't be read") if has_copy else nullcontext():
            backend_of(self._config.platform).save_log(job.name, self._folder)

    def raise_if_nothing_printed(self) -> None:
        """Raise SweepNotFound if nothing was printed."""
        if not self._files and not self._followed:
            raise SweepNotFound(
                f"sweep {self._sweep} has no matching log: none is stored in {self._folder}, and"
                " none is on the platform"
            )

    def _processes(self, code: str) -> int:
        """Return the number of ranks per node in jobs of the arm with this code."""
        named = (arm.name for arm in arms_of(self._config) if arm.code == code)
        config = self._config.of_arm(next(named, self._config.arm_names[0]))
        return processes_per_node(config, config.node_type(config.training.instance_type))

    def _matches(self, key: names.JobKey) -> bool:
        """Return True if lines of the job are wanted, and it has the rank whose lines are."""
        return self._filter.matches(key) and (
            self._filter.rank is None or self._host(key) is not None
        )

    def _host(self, key: names.JobKey) -> str | None:
        """Return the node of the wanted rank in a job; None if the job has no such rank."""
        rank = self._filter.rank
        assert rank is not None
        return host_of_rank(rank, key.nodes, self._processes(key.arm))

    def _print_files(self, paths: Iterable[Path]) -> None:
        """Print files job by job, fewest nodes first, with the nodes' lines merged by time."""
        by_job: dict[names.JobKey, list[Path]] = {}
        for path in paths:
            key = _key_of_file(path.name)
            if key is not None and self._matches(key):
                by_job.setdefault(key, []).append(path)
        for key, of_job in sorted(by_job.items(), key=lambda each: (each[0][1:], each[0].arm)):
            self._files += len(of_job)
            for line in read_saved_log(of_job):
                self._print(key, line)

    def _print_new(self, name: str, created: datetime) -> None:
        """Print all pages of a job's log; for a followed job, start where the last call stopped."""
        if name not in self._followed:
            self._followed[name] = backend_of(self._config.platform).launcher().logs(name, created)
        log, key = self._followed[name], _key_of(name)
        while True:
            for at, line in sorted(log.new_lines()):
                host, _, text = line.partition(": ")
                self._print(key, LogLine(at, host, hide_in_text(text)))
            if not log.has_more:
                return

    def _print(self, key: names.JobKey, line: LogLine) -> None:
        rank = self._filter.rank
        if rank is not None and (
            line.host != self._host(key) or rank_of(line.text) not in (None, rank)
        ):
            return
        job = f"v{key.attempt}" if key.nodes == _OF_VALIDATION else key.text
        print_text(f"{line.at} {job} {line.host} {line.text}")
