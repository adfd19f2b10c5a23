from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from nodesweep.launch.slurm.commands import CommandFailed
from nodesweep.launch.slurm.queue import ROW_FILE, Queue, read_rows, seconds_of
from nodesweep.polling import STOP, Clock

SQUEUE = """\
A banner of the site | with a bar
12|job-a|RUNNING|None|2|2026-01-02T03:04:05|2026-01-02T03:04:06|2026-01-02T04:04:06|0|1|node=2,billing=128|
13|job-b |PENDING|Resources|1|2026-01-02T03:04:05|2026-01-03T00:00:00|NONE               |0|0||
"""
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_rows_of_squeue() -> None:
    first, second = read_rows(SQUEUE)
    assert (first.job_id, first.name, first.state, first.reason) == (12, "job-a", "RUNNING", None)
    assert (first.nodes, first.submitted_at, first.restarts) == (2, AT, 1)
    assert (first.billing, second.billing) == (128, None)
    # the end of a running job is its limit, the start of a waiting one a guess
    assert (first.started_at, first.ended_at) == (AT.replace(second=6), None)
    assert (second.started_at, second.ended_at, second.reason) == (None, None, "Resources")


def test_the_last_cell_of_a_row_may_be_empty() -> None:
    lines = [line for line in SQUEUE.splitlines() if line.endswith("||")]
    assert read_rows(lines[0].removesuffix("|")) == read_rows(lines[0]) != ()


def test_a_row_survives_its_file() -> None:
    for row in read_rows(SQUEUE):
        body = ROW_FILE.dump_json(row)
        assert ROW_FILE.validate_json(body) == row
        values = json.loads(body)
        del values["billing"]  # as sweeps before 2026-11-27 have it
        values["submitted_at"] = "2026-01-02T03:04:05+00:00"  # as they write it
        assert ROW_FILE.validate_json(json.dumps(values)) == replace(row, billing=None)


class Slurm:
    """Counts commands without running them, on a clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = 100.0
        self.problem: str | None = None
        self.accounting = ""

    def run(self, command: list[str]) -> str:
        self.calls.append(command[0])
        assert command[0] != "squeue" or "--all" in command, "partitions may be hidden"
        assert not any("Restarts" in each for each in command), "sacct 22.05: Invalid field"
        if self.problem is not None:
            raise CommandFailed(self.problem, self.problem)
        return SQUEUE if command[0] == "squeue" else self.accounting

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def queue(slurm: Slurm) -> Queue:
    return Queue(slurm.run, Clock(monotonic=lambda: slurm.now, wait=slurm.wait))


def test_slurm_is_asked_once_a_second_for_all_jobs(slurm: Slurm, queue: Queue) -> None:
    for _ in range(50):
        assert len(queue.rows()) == 2
    assert (slurm.calls, slurm.now) == (["squeue"], 100.0)
    slurm.now += 1.0
    queue.rows()
    assert len(slurm.calls) == 2


def test_what_changed_since_is_seen_at_once_but_not_sooner_than_a_second(
    slurm: Slurm, queue: Queue
) -> None:
    queue.rows()
    queue.forget()
    queue.rows()
    assert (len(slurm.calls), slurm.now) == (2, 101.0)
    slurm.now += 0.5
    queue.rows(not_before=slurm.now)
    assert (len(slurm.calls), slurm.now) == (3, 102.0)


def test_a_poll_that_failed_is_no_empty_queue(slurm: Slurm, queue: Queue) -> None:
    slurm.problem = "Unable to contact slurm controller"
    for _ in range(2):
        with pytest.raises(CommandFailed):
            queue.rows()
    slurm.problem = None
    assert len(queue.rows()) == 2


def test_a_run_that_is_being_cancelled_polls_for_the_jobs_that_it_stops(slurm: Slurm) -> None:
    STOP.set()
    queue = Queue(slurm.run)
    for _ in range(2):
        assert len(queue.rows()) == 2
        queue.forget()
    assert slurm.calls == ["squeue"] * 2


def test_a_cluster_without_accounting_is_asked_for_it_once(slurm: Slurm, queue: Queue) -> None:
    assert queue.accounted(12) == ()
    slurm.problem = "sacct: error: Slurm accounting storage is disabled"
    for _ in range(3):
        assert queue.accounted(12) == ()
    assert slurm.calls == ["sacct"] * 2


def test_rows_of_sacct(slurm: Slurm, queue: Queue) -> None:
    slurm.accounting = (
        "12|job-a|CANCELLED by 1000|None|2|2026-01-02T03:04:05|2026-01-02T03:04:05"
        "|2026-01-02T03:04:05|0:15|billing=64,cpu=2,node=2|00:00:00|0\n"
        "13|job-b|FAILED|NonZeroExitCode|1|2026-01-02T03:04:05|Unknown|Unknown|3:0||00:00:00|0\n"
        "13.batch|batch|FAILED||1||||3:0|cpu=1|00:00:00|1\n"
    )
    first, second = queue.accounted(12)
    assert (first.state, first.reason, first.exit_status) == ("CANCELLED", "by 1000", 15)
    assert (first.billing, second.billing) == (64, None)
    assert (second.exit_status, second.started_at, second.reason) == (768, None, "NonZeroExitCode")


def test_accounting_that_fails_otherwise_is_an_error(slurm: Slurm, queue: Queue) -> None:
    slurm.problem = "sacct: error: Connection refused"
    with pytest.raises(CommandFailed):
        queue.accounted(12)


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("00:08.205", 8.205),
        ("02:03:04", 7384.0),
        ("1-02:03:04", 93_784.0),
        ("10:00", 600.0),
        ("infinite", None),
        ("", None),
    ],
)
def test_durations(duration: str, seconds: float | None) -> None:
    assert seconds_of(duration) == seconds
