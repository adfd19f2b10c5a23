"""Execute one chaos run: tries of one sweep, each struck as planned, until one ends well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.chaos.forks import Forked, Forks
from benchmarks.chaos.plan import ChaosPlan, Disturbance, Kind, Moment
from benchmarks.chaos.proxy import Call, Proxy
from benchmarks.chaos.world import (
    NODE_COUNTS,
    QUOTA,
    QUOTA_WITH_POOLS,
    REPEATS,
    Platform,
    Sampler,
    keep_processing_price,
    served_platform,
    write_benchmark,
    write_config,
)
from nodesweep.cli.processes import Progress
from nodesweep.scaling import names

Process = subprocess.Popen[bytes] | Forked
_POLL_SECONDS = 1.0
_MORE_TRIES = 4
"""Tries beyond the disturbed ones, since losing many calls in a row may end a try by itself."""
_SECOND_SIGNAL_SECONDS = 0.3
_THEN_SIGTERM_SECONDS = 0.1
_KILLS: Sequence[Kind] = ("kill", "worker_kill", "detach_kill")


@dataclass(frozen=True)
class Try:
    """One execution of the command; exit code None if it was still running at the deadline.

    Attributes:
        struck: True if its disturbance was triggered.
    """

    disturbance: str | None
    struck: bool
    exit_code: int | None
    seconds: float
    last_words: str
    left_running: Sequence[str] = ()
    """Jobs in progress at its end, without those that are being stopped."""


@dataclass(frozen=True)
class Evidence:
    """Traces that a run left on the platform and on the way to it."""

    plan: ChaosPlan
    tries: Sequence[Try]
    jobs: Sequence[Mapping[str, Any]]
    """Descriptions of all training jobs on the platform."""
    processing_jobs: Sequence[Mapping[str, Any]]
    """Descriptions of all Processing jobs on the platform."""
    stopped_sweeps: frozenset[str]
    """Sweeps ended by `nodesweep stop`."""
    sweep: str | None
    report: Mapping[str, Any] | None
    local_report: Mapping[str, Any] | None
    calls: Sequence[Call]
    faults: Mapping[str, int]
    peak_nodes: int
    peak_jobs: int
    seconds: float


class Saboteur:
    """Strikes one try once, at its trigger's call; `command` starts another command in parallel."""

    def __init__(
        self, disturbance: Disturbance, proxy: Proxy, command: Callable[[Kind], None]
    ) -> None:
        self.struck = False
        """True if the strike was carried out; a strike after the end of its try is not."""
        self.process: Process | None = None
        self._disturbance, self._proxy, self._command = disturbance, proxy, command
        self._lock = threading.Lock()
        self._is_triggered = False
        self._timers: list[threading.Timer] = []

    def __call__(self, label: str, number: int, moment: Moment) -> bool:
        """Strike at the trigger's call; return True if a kill or an outage cuts off the call."""
        trigger = self._disturbance.trigger
        with self._lock:
            if self._is_triggered or (label, number, moment) != (
                trigger.label,
                trigger.number,
                trigger.moment,
            ):
                return False
            self._is_triggered = True
        if trigger.delay_seconds:
            self._later(trigger.delay_seconds, self._act)
            return False
        self._act()
        return self._disturbance.kind in _KILLS or self._proxy.is_down()

    def _act(self) -> None:
        self.struck = True
        kind, seconds = self._disturbance.kind, self._disturbance.outage_seconds
        if kind.startswith("outage"):
            self._proxy.go_down(seconds)
        if kind in _KILLS:
            self._signal(signal.SIGKILL)
        elif kind in ("sigterm", "worker_sigterm", "detach_sigterm"):
            self._signal(signal.SIGTERM)
        elif kind in ("stop", "second_owner"):
            self._command(kind)
        elif kind in ("sigint", "sigint_twice", "sigint_then_sigterm"):
            self._signal(signal.SIGINT)
            if kind == "sigint_then_sigterm":
                self._later(_THEN_SIGTERM_SECONDS, lambda: self._signal(signal.SIGTERM))
            if kind == "sigint_twice":
                self._later(_SECOND_SIGNAL_SECONDS, lambda: self._signal(signal.SIGINT))
        elif kind == "outage_then_kill":
            self._later(seconds / 2, lambda: self._signal(signal.SIGKILL))
        elif kind == "outage_then_sigterm":
            self._later(seconds / 2, lambda: self._signal(signal.SIGTERM))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def end(self) -> None:
        """End the try; a strike that has not begun is dropped, so it cannot hit the next try."""
        for timer in self._timers:
            timer.cancel()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process; SIGKILL goes to its session, so that a worker's flow run dies too."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        if number == signal.SIGKILL:
            _end_session(process)
        else:
            process.send_signal(number)


def _end_session(process: Process) -> None:
    """Kill all remaining processes of the session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_chaos(plan: ChaosPlan, folder: Path, forks: Forks) -> Evidence:
    """Disturb and resume a sweep until it is done; `folder` is created and holds all files."""
    started = time.monotonic()
    write_benchmark(folder)
    with (
        served_platform(folder / "platform", plan, quota_of(plan)) as platform,
        Proxy(platform.endpoint, plan.call_fault, plan.lag, platform.state_directory) as proxy,
        Sampler(platform) as sampler,
    ):
        config = write_config(
            folder,
            proxy.endpoint,
            keep_alive_seconds=plan.keep_alive_seconds,
            on_spark=plan.on_spark,
        )
        if plan.on_spark:
            keep_processing_price(Path(forks.environment["XDG_CACHE_HOME"]), proxy.endpoint)
        tries = _run_tries(plan, platform, proxy, config, forks)
        sweep = platform.sweep()
        report_key = names.report_key("nodesweep", sweep or "", names.REPORT_JSON)
        local = folder / "reports" / (sweep or "") / names.REPORT_JSON
        return Evidence(
            plan=plan,
            tries=tries,
            jobs=[platform.describe(job["TrainingJobName"]) for job in platform.jobs()],
            processing_jobs=[
                platform.sagemaker.describe_processing_job(
                    ProcessingJobName=job["ProcessingJobName"]
                )
                for job in platform.processing_jobs()
            ],
            stopped_sweeps=frozenset(platform.stopped_sweeps()),
            sweep=sweep,
            report=(
                platform.read_json(report_key) if report_key in platform.keys(report_key) else None
            ),
            local_report=json.loads(local.read_bytes()) if local.is_file() else None,
            calls=list(proxy.calls),
            faults=dict(proxy.faults),
            peak_nodes=sampler.peak_nodes,
            peak_jobs=sampler.peak_jobs,
            seconds=time.monotonic() - started,
        )


def quota_of(plan: ChaosPlan) -> int:
    """Return the number of instances that the run's platform grants."""
    return QUOTA if plan.keep_alive_seconds is None else QUOTA_WITH_POOLS


def _run_tries(
    plan: ChaosPlan, platform: Platform, proxy: Proxy, config: Path, forks: Forks
) -> list[Try]:
    """Start the sweep and resume it until a try ends well or hangs, or too many were made."""
    tries: list[Try] = []
    for number in range(len(plan.disturbances) + 1 + _MORE_TRIES):
        disturbance = plan.disturbances[number] if number < len(plan.disturbances) else None
        kind = "" if disturbance is None else disturbance.kind
        is_worker = kind.startswith("worker")
        is_detached = kind.startswith("detach") and platform.sweep() is None
        log = config.parent / f"try-{number + 1}.log"
        command = _command(config, platform)
        if is_detached:  # starts all jobs at once; those beyond the quota are refused
            places = len(NODE_COUNTS) * REPEATS
            parallel = write_config(
                config.parent,
                proxy.endpoint,
                "detached.yaml",
                places,
                plan.keep_alive_seconds,
                plan.on_spark,
            )
            command = ["run", str(parallel), "--detach"]
        second = _SecondCommand(config, platform, forks)
        process: Process
        if is_worker:
            process = _start_worker(config, forks.environment, log)
        else:
            process = forks.start(command, config.parent, log)
        try:
            done = _watch(process, disturbance, proxy, log, second)
            second.wait()
            running = [job["TrainingJobName"] for job in platform.jobs(StatusEquals="InProgress")]
            running += [
                job["ProcessingJobName"]
                for job in platform.processing_jobs(StatusEquals="InProgress")
            ]
            tries.append(replace(done, left_running=running))
        finally:
            second.end()
            if is_worker or process.poll() is None:
                # as a service manager kills leftover processes of a worker
                _end_session(process)
        # A worker exits successfully whatever the result of its flow run, so its sweep is always
        # resumed.
        if tries[-1].exit_code is None or (
            tries[-1].exit_code == 0 and not is_worker and not is_detached
        ):
            break
    return tries


class _SecondCommand:
    """A second command during a try: another run of the sweep, or a stop."""

    def __init__(self, config: Path, platform: Platform, forks: Forks) -> None:
        self._config, self._platform, self._forks = config, platform, forks
        self._process: Process | None = None

    def start(self, kind: Kind) -> None:
        """Start the command if the sweep has begun; before, there is nothing to stop or join."""
        sweep = self._platform.sweep_to_continue()
        if sweep is None:
            return
        own = ["--output", str(self._config.parent / "beside")]
        if kind == "stop":
            command = ["stop", sweep, "--config", str(self._config)]
        else:
            command = ["run", str(self._config), "--resume", sweep, *own]
        log = self._config.parent / f"beside-{time.time_ns()}.log"
        self._process = self._forks.start(command, self._config.parent, log)

    def wait(self) -> None:
        """Wait for the command to end, as long as it makes progress."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                wait_by_progress(self._process)

    def end(self) -> None:
        """Kill the command if it is still running."""
        if self._process is not None and self._process.poll() is None:
            _end_session(self._process)


def wait_by_progress(process: Process) -> int:
    """Wait for the process, however slow the machine is, and return its exit code.

    Raises:
        subprocess.TimeoutExpired: The process makes no progress.
    """
    progress = Progress(process.pid)
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if progress.problem() is not None:
                raise


def _command(config: Path, platform: Platform) -> list[str]:
    """Return the command a user would run: resume the sweep if it has begun, otherwise start it."""
    sweep = platform.sweep_to_continue()
    resume = ["--resume", sweep] if sweep else []
    return ["run", str(config), *resume]


def _start_worker(
    config: Path, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chaos.worker", str(config)],
            cwd=config.parent,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


def _watch(
    process: Process,
    disturbance: Disturbance | None,
    proxy: Proxy,
    log: Path,
    second: _SecondCommand,
) -> Try:
    """Wait for the end of a try while its saboteur works; kill it at the deadline."""
    started = time.monotonic()
    saboteur = None if disturbance is None else Saboteur(disturbance, proxy, second.start)
    if saboteur is not None:
        saboteur.process = process
    proxy.begin_try(saboteur)
    code: int | None
    try:
        code = wait_by_progress(process)
    except subprocess.TimeoutExpired:
        _end_session(process)
        process.wait()
        code = None
    if saboteur is not None:
        saboteur.end()
    return Try(
        disturbance=None if disturbance is None else str(disturbance),
        struck=saboteur is not None and saboteur.struck,
        exit_code=code,
        seconds=round(time.monotonic() - started, 1),
        last_words=_last_words(log),
    )


def _last_words(log: Path) -> str:
    """Return the last non-empty line of a try's output, at most 200 characters, paths relative."""
    text = log.read_text(errors="replace").replace(str(log.parent), ".")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
