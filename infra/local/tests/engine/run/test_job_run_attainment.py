"""The time in which a run measures the CPU share of its nodes, and how it reports the share."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from sagemaker_emulator.engine.host.cgroups import CpuQuotas
from sagemaker_emulator.engine.run.job_run import JobRun, Quota, RunTimes, attainment_note
from sagemaker_emulator.interfaces import Node, NodeAttainment, NodeUsage

HOSTS = ("algo-1", "algo-2")


class Nodes:
    """Nodes whose CPU seconds the test sets."""

    supervisor_exit_code = None

    def __init__(self) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.cpu_seconds = dict.fromkeys(HOSTS, 1.0)

    def usage(self, vcpus: float) -> dict[str, NodeUsage]:
        return {host: NodeUsage(seconds, 0, vcpus) for host, seconds in self.cpu_seconds.items()}

    def thread_ids(self, host: str) -> list[int]:
        return []

    def stopped_periods(self, host: str) -> None:
        return None

    def end(self) -> None:
        for host in HOSTS:
            self.events.put({"event": "ended", "host": host, "exit_code": 0})


class Run:
    """A run of two nodes with a quota, whose control groups are folders; optionally at the boot
    barrier."""

    def __init__(self, folder: Path, waits: bool) -> None:
        self.supervised = Nodes()
        self.lines: list[tuple[str, str]] = []
        nodes = [Node(host, "127.0.0.1", folder / host / "ml") for host in HOSTS]
        self.boots = {host: folder / host / "boot" for host in HOSTS}
        for boot in self.boots.values():
            boot.mkdir(parents=True)
        quotas = CpuQuotas(1, folder / "cgroups")
        quota = Quota(
            quotas, {host: quotas.create(host) for host in HOSTS}, 0.2, {"algo-1": 0, "algo-2": 0}
        )
        self.run = JobRun(
            nodes,
            self.supervised,
            lambda host, text, _: self.lines.append((host, text)),
            threading.Event(),
            600,
            quota,
            self.boots if waits else None,
            RunTimes(),
        )

    def say(self, word: str) -> None:
        for boot in self.boots.values():
            (boot / word).touch()


def test_it_counts_from_go_to_done(tmp_path: Path) -> None:
    made = Run(tmp_path, waits=True)
    made.supervised.cpu_seconds = dict.fromkeys(HOSTS, 7.0)  # booting does not count
    made.say("ready")
    made.run._pass_barriers(time.monotonic())
    made.supervised.cpu_seconds = {"algo-1": 7.5, "algo-2": 7.25}
    made.say("done")
    made.run._pass_barriers(time.monotonic())
    made.supervised.cpu_seconds = dict.fromkeys(HOSTS, 99.0)  # shutting down does not count
    made.supervised.end()
    result = made.run.until_all_ended()
    assert {host: got.cpu_seconds for host, got in result.attainment.items()} == {
        "algo-1": 0.5,
        "algo-2": 0.25,
    }
    assert ["0.5 s of CPU" in text for host, text in made.lines if host == "algo-1"] == [
        False,
        True,
    ]


def test_nodes_that_wait_at_no_barrier_count_from_their_start_to_the_first_ones_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagemaker_emulator.engine.run.job_run._READING_SECONDS", 0.0)
    made = Run(tmp_path, waits=False)
    now = time.monotonic()
    made.run._measure(now)
    made.supervised.cpu_seconds = {"algo-1": 1.5, "algo-2": 2.0}
    made.run._measure(now + 3)
    made.supervised.cpu_seconds = dict.fromkeys(HOSTS, 50.0)
    made.supervised.end()
    result = made.run.until_all_ended()
    assert {host: got.cpu_seconds for host, got in result.attainment.items()} == {
        "algo-1": 0.5,
        "algo-2": 1.0,
    }


def test_that_of_a_part_of_the_time_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script first loads libraries and then trains."""
    monkeypatch.setattr("sagemaker_emulator.engine.run.job_run._READING_SECONDS", 0.0)
    made = Run(tmp_path, waits=False)
    now = time.monotonic()
    made.run._measure(now)
    assert made.run._meter is not None
    for after_seconds, cpu_seconds in ((100, 9.0), (200, 9.5)):
        monkeypatch.setattr(made.run._meter, "_clock", lambda at=now + after_seconds: at)
        made.supervised.cpu_seconds = dict.fromkeys(HOSTS, cpu_seconds)
        made.run._measure(now + after_seconds)
    made.supervised.end()
    result = made.run.until_all_ended()
    assert result.attainment_within is not None
    assert result.attainment["algo-1"].cpu_seconds == 8.5
    loaded = time.time() - time.monotonic() + now + 100
    assert result.attainment_within(loaded, loaded + 100)["algo-1"].cpu_seconds == 0.5


def test_without_a_quota_nothing_was_promised(tmp_path: Path) -> None:
    made = Run(tmp_path, waits=True)
    made.run.quota = None
    made.say("ready")
    made.say("done")
    made.supervised.end()
    assert made.run.until_all_ended().attainment == {}


def test_counters_that_cannot_be_read_do_not_end_the_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    made = Run(tmp_path, waits=True)

    def broken(vcpus: float) -> dict[str, NodeUsage]:
        raise OSError("no /proc")

    monkeypatch.setattr(made.supervised, "usage", broken)
    made.say("ready")
    made.run._pass_barriers(time.monotonic())
    made.say("done")
    made.supervised.end()
    result = made.run.until_all_ended()
    assert (result.failed_host, result.attainment) == (None, {})
    assert caplog.messages == snapshot


def test_the_note_says_what_is_known(snapshot: SnapshotAssertion) -> None:
    full = NodeAttainment(100.0, 20.0, 6.0, 20.0, 93.9, 0.04)
    assert attainment_note(full) == snapshot
    bare = NodeAttainment(100.0, 20.0, 6.0, None, None, None)
    assert attainment_note(bare) == snapshot
