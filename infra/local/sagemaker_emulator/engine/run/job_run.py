"""Drives one run of a job: the boot barrier, node failures, stop requests and the deadline.

When a node fails, the others get a grace period (most exit by themselves, and one may be the root
cause), then SIGTERM, then SIGKILL. On a stop request or at the deadline, SIGTERM comes immediately
and SIGKILL 120 s later, as on AWS. `RunTimes` has the delays.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from sagemaker_emulator.engine.errors import SupervisorError
from sagemaker_emulator.engine.host.attainment import AttainmentMeter
from sagemaker_emulator.engine.host.ballast import Ballast, ballast_ran
from sagemaker_emulator.engine.host.cgroups import CpuQuotas
from sagemaker_emulator.engine.run.failure import (
    failure_reason,
    is_connection_loss,
    is_failed,
    root_cause,
)
from sagemaker_emulator.engine.run.node_files import failure_text
from sagemaker_emulator.engine.run.running_nodes import Event, RunningNodes
from sagemaker_emulator.interfaces import LineSink, Node, NodeAttainment, NodeExit, RunResult

_TICK_SECONDS = 0.05
_TERM_REPEAT_SECONDS = 1.0
_READING_SECONDS = 2.0
"""Interval between readings of CPU counters. Reading 8 nodes takes a few ms of CPU time."""
_START_POLL_SECONDS = 0.2
_PLATFORM_PREFIX = "[platform]"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunTimes:
    """Timeouts and grace periods of a run."""

    failure_grace_seconds: float = 5.0
    misleading_failure_grace_seconds: float = 15.0  # if all failures so far are lost connections
    failure_term_seconds: float = 5.0  # from SIGTERM to SIGKILL, for the peers of a failed node
    stop_term_seconds: float = (
        120.0  # from SIGTERM to SIGKILL for a stop, as documented for StopTrainingJob
    )
    boot_seconds: float = 240.0  # 8 nodes import torch and Lightning on 2 busy cores in about 25 s
    after_kill_seconds: float = 30.0


@dataclass
class _Ending:
    """The state of a run that is being stopped."""

    cause: Literal["failure", "stop", "timeout"]
    since: float
    term_sent_at: float | None = None
    term_repeated_at: float = 0.0
    kill_sent_at: float | None = None


@dataclass(frozen=True)
class Quota:
    """The CPU quota of the nodes, and the CPU that each node is pinned to.

    The kernel enforces the quota if the nodes have cgroups. Otherwise, `limit` enforces it; it is
    called with the vCPUs per node, or with None to remove the quota.
    """

    quotas: CpuQuotas | None
    group_by_host: Mapping[str, Path]
    vcpus: float
    cpu_by_host: Mapping[str, int] = field(default_factory=dict)
    limit: Callable[[float | None], None] | None = None

    def apply(self) -> None:
        """Apply the quota to every node."""
        if self.limit:
            self.limit(self.vcpus)
        for group in self.group_by_host.values():
            if self.quotas:
                self.quotas.apply(group, self.vcpus)

    def lift(self) -> None:
        """Remove the quota, ignoring errors, which only delay the end of the nodes."""
        if self.limit:
            self.limit(None)
        for group in self.group_by_host.values():
            with contextlib.suppress(OSError):
                if self.quotas:
                    self.quotas.lift(group)


@dataclass
class JobRun:
    """Runs the nodes of a job until they have ended, and holds the state of the run.

    `boot_folders` maps hosts to boot barrier folders. It is None if nodes do not wait there.
    """

    nodes: Sequence[Node]
    supervised: RunningNodes
    on_line: LineSink
    stop: threading.Event
    max_runtime_seconds: float
    quota: Quota | None
    boot_folders: Mapping[str, Path] | None
    times: RunTimes
    _exits: dict[str, NodeExit] = field(default_factory=dict)
    _ended_by_us: set[str] = field(default_factory=set)
    _terminated_pids: set[int] = field(default_factory=set)
    _ending: _Ending | None = None
    _is_released: bool = False  # the nodes have been released
    _done: bool = False  # the nodes have finished measuring
    _started_at: float = field(default_factory=time.monotonic)
    _supervisor_lost: bool = False
    _meter: AttainmentMeter | None = None  # while the nodes measure
    _ended_meter: AttainmentMeter | None = None  # once they have finished
    _ballast: Ballast | None = None  # while the nodes measure
    _read_at: float = 0.0
    _attainment: Mapping[str, NodeAttainment] = field(default_factory=dict)

    def until_all_ended(self) -> RunResult:
        """Run the nodes until all have ended, and return the result."""
        try:
            self._drive()
        finally:
            self._store_attainment()
        result = self._lost_result() if self._supervisor_lost else self._result()
        return replace(
            result, attainment=self._attainment, attainment_within=self._attainment_within
        )

    def _drive(self) -> None:
        while len(self._exits) < len(self.nodes) and not self._supervisor_lost:
            with contextlib.suppress(queue.Empty):
                self._take(self.supervised.events.get(timeout=_TICK_SECONDS))
            now = time.monotonic()
            self._begin_ending(now)  # first, since no node may pass the barrier after a failure
            self._pass_barriers(now)
            self._measure(now)
            self._continue_ending(now)

    def _take(self, event: Event) -> None:
        if event["event"] == "ended":
            self._note_exit(event["host"], event["exit_code"])
        elif event["event"] == "not_started":
            self._note_exit(
                event["host"], 127, f"{event['host']} could not start `train`: {event['error']}"
            )
        elif event["event"] == "supervisor_lost":
            self._supervisor_lost = True

    def _note_exit(self, host: str, exit_code: int, failure: str | None = None) -> None:
        node = next(node for node in self.nodes if node.host == host)
        text = failure or failure_text(node)
        self._exits[host] = NodeExit(
            host, exit_code, time.time(), text, stopped_by_platform=host in self._ended_by_us
        )

    # -- the boot barrier

    def _pass_barriers(self, now: float) -> None:
        """Apply the quota once all nodes are `ready`, and lift it once all are `done`.

        At 0.2 vCPU, torch would take a minute to import and seconds to exit.
        """
        if self.boot_folders is None or self._done or self._ending:
            return
        if not self._is_released:
            self._release_nodes(self.boot_folders, now)
        elif not self._hosts_without("done", self.boot_folders):
            self._done = True
            self._end_measuring()
            self._lift_quota()

    def _hosts_without(self, file_name: str, folders: Mapping[str, Path]) -> list[str]:
        return [
            host for host in self._remaining_hosts() if not (folders[host] / file_name).exists()
        ]

    def _release_nodes(self, folders: Mapping[str, Path], now: float) -> None:
        """Apply the quota and release the nodes once all are ready or the boot time has passed."""
        waited_for = self._hosts_without("ready", folders)
        boot_seconds = now - self._started_at
        if waited_for and boot_seconds < self.times.boot_seconds:
            return
        self._apply_quota()
        note = self._quota_note(boot_seconds)
        if waited_for:
            # These nodes continue to boot under the quota. If their programs do not wait at the
            # barrier, they have measured without a quota.
            note += f"; not ready by then: {', '.join(waited_for)}"
            note += " (their measurements until now ran without the quota)" if self.quota else ""
        for host, folder in folders.items():
            if host not in self._exits:
                self._say(host, note)
            (folder / "go").touch()
        self._is_released = True
        self._begin_measuring(now)

    def _apply_quota(self) -> None:
        if self.quota:
            self.quota.apply()

    def _quota_note(self, boot_seconds: float) -> str:
        if self.quota is None:
            return f"boot took {boot_seconds:.1f} s; no CPU quota (nodes not isolated)"
        return (
            f"boot took {boot_seconds:.1f} s without a quota; {self.quota.vcpus:g} vCPU per node"
            " applies from now on"
        )

    # -- CPU attainment: errors must not fail the job, whose measurements are still usable

    def _measure(self, now: float) -> None:
        """Read the CPU usage of the nodes; without a barrier, from their start until one ends."""
        if self._meter is None:
            if (
                self.boot_folders is None
                and not self._done
                and not self._exits
                and self._are_started(now)
            ):
                self._begin_measuring(now)
        elif self._exits or self._ending:
            self._done = self._done or self.boot_folders is None
            self._store_attainment()
        elif now - self._read_at >= _READING_SECONDS:
            self._take_reading(now)

    def _are_started(self, now: float) -> bool:
        if self.quota is None or now - self._read_at < _START_POLL_SECONDS:
            return False
        self._read_at = now
        return len(self.supervised.usage(self.quota.vcpus)) == len(self.nodes)

    def _begin_measuring(self, now: float) -> None:
        if self.quota is None:
            return
        quota, supervised = self.quota, self.supervised
        self._ballast = Ballast(quota.cpu_by_host.values())
        self._meter = AttainmentMeter(
            lambda: supervised.usage(quota.vcpus),
            quota.group_by_host,
            quota.cpu_by_host,
            quota.vcpus,
            thread_ids=supervised.thread_ids,
            stopped_periods=supervised.stopped_periods,
            ballast=ballast_ran,
        )
        with self._logging_read_errors():
            self._ballast.start()
            self._meter.begin()
        self._read_at = now

    def _take_reading(self, now: float) -> None:
        if self._meter is not None:
            with self._logging_read_errors():
                self._meter.take_reading()
        self._read_at = now

    def _end_measuring(self) -> None:
        """Take a last reading if all nodes are alive, and log the attainment of each node."""
        if not self._exits:
            self._take_reading(time.monotonic())
        self._store_attainment()
        for host, attained in self._attainment.items():
            self._say(host, attainment_note(attained))

    def _attainment_within(
        self, from_unix_seconds: float, to_unix_seconds: float
    ) -> Mapping[str, NodeAttainment]:
        if self._ended_meter is None:
            return {}
        zero = time.time() - time.monotonic()
        return self._ended_meter.attainments(from_unix_seconds - zero, to_unix_seconds - zero)

    def _store_attainment(self) -> None:
        if self._meter is not None:
            self._attainment = self._meter.attainments()
            self._ended_meter, self._meter = self._meter, None
        if self._ballast is not None:
            self._ballast.stop()
            self._ballast = None

    @contextlib.contextmanager
    def _logging_read_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):
            logger.exception("could not read the nodes' CPU usage")

    # -- the end

    def _begin_ending(self, now: float) -> None:
        if self._ending is not None:
            return
        if any(is_failed(node_exit) for node_exit in self._exits.values()):
            self._ending = _Ending("failure", now)
            # The measurement is lost, and without the quota, the peers can write their reasons
            # within the grace period.
            self._lift_quota()
        elif self.stop.is_set():
            self._ending = _Ending("stop", now)
        elif now - self._started_at >= self.max_runtime_seconds:
            self._ending = _Ending("timeout", now)

    def _lift_quota(self) -> None:
        if self.quota:
            self.quota.lift()

    def _continue_ending(self, now: float) -> None:
        ending = self._ending
        if ending is None or len(self._exits) == len(self.nodes):
            return
        if ending.term_sent_at is None:
            if now - ending.since >= self._grace_seconds(ending):
                ending.term_sent_at = ending.term_repeated_at = now
                self._announce("SIGTERM")
                self._terminate_remaining()
        elif ending.kill_sent_at is None:
            is_failure = ending.cause == "failure"
            allowed = (
                self.times.failure_term_seconds if is_failure else self.times.stop_term_seconds
            )
            if now - ending.term_sent_at >= allowed:
                ending.kill_sent_at = now
                self._announce("SIGKILL")
                for host in self._remaining_hosts():
                    self.supervised.kill(host)
            elif now - ending.term_repeated_at >= _TERM_REPEAT_SECONDS:
                ending.term_repeated_at = now
                # Reach processes that were started since the first SIGTERM.
                self._terminate_remaining()
        elif now - ending.kill_sent_at >= self.times.after_kill_seconds:
            remaining = ", ".join(self._remaining_hosts())
            raise SupervisorError(
                f"still running {self.times.after_kill_seconds:g} s after SIGKILL: {remaining}"
            )

    def _grace_seconds(self, ending: _Ending) -> float:
        if ending.cause != "failure":
            return 0.0
        failed = [node_exit for node_exit in self._exits.values() if is_failed(node_exit)]
        misleading = all(is_connection_loss(node_exit) for node_exit in failed)
        return (
            self.times.misleading_failure_grace_seconds
            if misleading
            else self.times.failure_grace_seconds
        )

    def _announce(self, signal_name: str) -> None:
        for host in self._remaining_hosts():
            self._ended_by_us.add(host)
            self._say(host, f"{signal_name} to the node's processes")

    def _terminate_remaining(self) -> None:
        for host in self._remaining_hosts():
            self._terminated_pids |= self.supervised.terminate(host, self._terminated_pids)

    def _remaining_hosts(self) -> list[str]:
        return [node.host for node in self.nodes if node.host not in self._exits]

    def _say(self, host: str, text: str) -> None:
        self.on_line(host, f"{_PLATFORM_PREFIX} {text}", int(time.time() * 1000))

    # -- the result

    def _result(self) -> RunResult:
        exits = [self._exits[node.host] for node in self.nodes]
        cause = self._ending.cause if self._ending else None
        if cause in ("stop", "timeout"):
            return RunResult(exits, stopped=cause == "stop", timed_out=cause == "timeout")
        culprit = root_cause(exits)
        if culprit is None:
            return RunResult(exits)
        return RunResult(exits, culprit.host, failure_reason(culprit, len(exits)))

    def _lost_result(self) -> RunResult:
        """Return the result of a run whose supervisor died and took the nodes with it.

        The platform is at fault, so the reason is AWS's InternalServerError.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self.supervised.events.get_nowait())
        now = time.time()
        for host in self._remaining_hosts():
            self._exits[host] = NodeExit(host, -signal.SIGKILL, now, None, stopped_by_platform=True)
        reason = (
            "InternalServerError: the process that supervises the nodes ended during the run "
            f"(exit code {self.supervised.supervisor_exit_code}); please retry the job."
        )
        return RunResult(
            [self._exits[node.host] for node in self.nodes], self.nodes[0].host, reason
        )


def attainment_note(attained: NodeAttainment) -> str:
    """Return a line for the node's log that describes the CPU time that the node got."""
    got = f"{attained.cpu_seconds:.1f} s of CPU in {attained.seconds:.1f} s, with a quota of "
    got += f"{attained.quota_seconds:.1f} s"
    if attained.share is not None:
        got += f"; {attained.share:.0%} of what it requested"
    if attained.throttled_share is not None:
        got += f"; its quota was exhausted in {attained.throttled_share:.0%} of the periods"
    if attained.run_queue_delay_seconds is not None:
        got += f"; waited {attained.run_queue_delay_seconds:.1f} s for a CPU with quota left"
    return got
