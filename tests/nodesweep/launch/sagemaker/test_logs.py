"""The complete log of a job next to the report: every line with its time, size limits that are
reported, and no secrets."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

import nodesweep.launch.registry
import nodesweep.launch.sagemaker.logs
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.backend import bind
from nodesweep.launch.sagemaker.logs import LOG_GROUP
from nodesweep.launch.saved_logs import (
    FINAL_SECONDS,
    SETTLING_SECONDS,
    is_saved,
    log_tail,
    read_saved_log,
    save_log,
    saved_files,
)
from nodesweep.scaling.job import JobStatus, LogLine

JOB = "bench-20261120191500-1a2b3c4d-n2-r1-a1-ab12"
FAILED = JobStatus(JOB, "failed")


def long_ago() -> datetime:
    """Return a time after which lines have settled, and missing ones are still expected."""
    return datetime.now(UTC) - timedelta(seconds=(SETTLING_SECONDS + FINAL_SECONDS) / 2)


def completed() -> JobStatus:
    return JobStatus(JOB, "completed", ended_at=long_ago())


class Job:
    """A job whose nodes have logs; the service refuses events older than 14 days."""

    def __init__(self, logs: Any) -> None:
        self.logs, self.begun = logs, int(time.time() * 1000)
        logs.create_log_group(logGroupName=LOG_GROUP)

    def write(self, host: str, *lines: tuple[int, str], started: int = 1700000000000) -> None:
        stream = f"{JOB}/{host}-{started}"
        self.logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        events = [{"timestamp": self.begun + offset, "message": text} for offset, text in lines]
        self.logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)


@pytest.fixture
def job(aws: Callable[[str], Any]) -> Job:
    return Job(aws("logs"))


@pytest.fixture
def its_platform(
    job: Job, platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> PlatformConfig:
    """Return the platform of the job, with its warnings shown."""
    monkeypatch.setattr(nodesweep.launch.registry, "aws_client", lambda *_: job.logs)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    return platform


def test_every_line_of_every_node_is_kept_with_its_time_and_read_in_its_order(
    job: Job, tmp_path: Path, its_platform: PlatformConfig
) -> None:
    job.write("algo-1", (1, "one\n"), (30, "three"))
    job.write("algo-2", (20, "two\nsecond line of two"))
    paths = bind(its_platform).save_log(JOB, tmp_path / "logs")
    assert [path.name for path in paths] == ["n2-r1-a1-ab12_algo-1.log", "n2-r1-a1-ab12_algo-2.log"]
    lines = list(read_saved_log(paths))
    assert [(line.host, line.text) for line in lines] == [
        ("algo-1", "one"), ("algo-2", "two"), ("algo-2", "second line of two"), ("algo-1", "three"),
    ]  # fmt: skip
    assert lines[0].at < lines[1].at == lines[2].at < lines[3].at
    assert lines[0] == LogLine(job.begun + 1, "algo-1", "one")
    assert log_tail(lines, 1) == ["algo-2: second line of two", "algo-1: three"]
    assert log_tail(lines) == [
        "algo-1: one",
        "algo-2: two",
        "algo-2: second line of two",
        "algo-1: three",
    ]


def test_all_starts_of_a_node_are_in_its_one_file(
    job: Job, tmp_path: Path, its_platform: PlatformConfig
) -> None:
    """Under managed spot, each start has a log stream."""
    job.write("algo-1", (50, "again"), started=1700000009999)
    job.write("algo-1", (1, "interrupted"))
    [path] = bind(its_platform).save_log(JOB, tmp_path)
    assert [line.text for line in read_saved_log([path])] == ["interrupted", "again"]


def test_secrets_are_hidden(job: Job, tmp_path: Path, its_platform: PlatformConfig) -> None:
    job.write("algo-1", (1, "password=hunter2 AKIAABCDEFGHIJKLMNOP"))
    [path] = bind(its_platform).save_log(JOB, tmp_path)
    assert "hunter2" not in path.read_text() and "AKIA" not in path.read_text()


def test_long_log_keeps_its_beginning_and_its_end_and_says_what_is_left_out(
    job: Job, tmp_path: Path, its_platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages of 1 MiB: what is beyond the cap is never held, but for the last page."""
    monkeypatch.setattr(nodesweep.launch.sagemaker.logs, "MAX_FIRST_BYTES", 1_500_000)
    filler = "x" * 100_000
    job.write("algo-1", *((at, f"line {at} {filler}") for at in range(9)))
    stream = f"{JOB}/algo-1-1700000000000"
    for begin in (9, 18, 27, 36):
        events = [
            {"timestamp": job.begun + at, "message": f"line {at} {filler}"}
            for at in range(begin, begin + 9)
        ]
        job.logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)
    monkeypatch.setattr(nodesweep.launch.registry, "aws_client", lambda *_: Pages(job.logs))
    [path] = bind(its_platform).save_log(JOB, tmp_path)
    texts = [line.text for line in read_saved_log([path])]
    numbers = [int(text.split()[1]) for text in texts if text.startswith("line ")]
    assert (
        numbers[0] == 0
        and numbers[-1] == 44
        and numbers == sorted(set(numbers))
        and len(numbers) < 45
    )
    [said] = [text for text in texts if not text.startswith("line ")]
    assert said.startswith("…") and said.endswith(f"{LOG_GROUP}, {stream}")


class Pages:
    """Enforces the service's limit of 1 MiB per page, which moto does not."""

    def __init__(self, logs: Any) -> None:
        self._logs, self.calls = logs, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    def get_log_events(self, **query: Any) -> dict[str, Any]:
        self.calls += 1
        return dict(self._logs.get_log_events(**query, limit=10))


def test_log_that_is_gone_leaves_what_was_kept(
    job: Job, tmp_path: Path, its_platform: PlatformConfig
) -> None:
    job.write("algo-1", (1, "kept"))
    bind(its_platform).read_log(FAILED, tmp_path)
    job.write("algo-1", (2, "late"), started=1700000009999)
    assert log_tail(bind(its_platform).read_log(FAILED, tmp_path)) == [
        "algo-1: kept",
        "algo-1: late",
    ]
    job.logs.delete_log_group(logGroupName=LOG_GROUP)
    assert log_tail(bind(its_platform).read_log(FAILED, tmp_path)) == [
        "algo-1: kept",
        "algo-1: late",
    ]
    unknown = JobStatus(JOB.replace("-a1-", "-a2-"), "failed")
    assert list(bind(its_platform).read_log(unknown, tmp_path)) == []


def test_a_completed_jobs_log_is_read_until_every_node_is_saved(
    job: Job, tmp_path: Path, its_platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Pages(job.logs)
    monkeypatch.setattr(nodesweep.launch.registry, "aws_client", lambda *_: counted)

    def read() -> list[str]:
        return log_tail(bind(its_platform).read_log(completed(), tmp_path))

    job.write("algo-1", (1, "train_seconds=3;"))
    assert read() == ["algo-1: train_seconds=3;"]
    assert counted.calls == 2, "the page and the one that says that it was the last"
    job.write("algo-2", (2, "late"))
    assert read() == ["algo-1: train_seconds=3;", "algo-2: late"]
    assert counted.calls == 6
    assert read() == ["algo-1: train_seconds=3;", "algo-2: late"]
    assert counted.calls == 6


def test_a_log_saved_right_after_the_jobs_end_is_read_again(
    job: Job, tmp_path: Path, its_platform: PlatformConfig
) -> None:
    """CloudWatch may have lines that it did not show then."""
    job.write("algo-1", (1, "first"))
    job.write("algo-2", (2, "second"))
    ended_at = long_ago()
    ended = replace(FAILED, state="completed", ended_at=ended_at)
    bind(its_platform).read_log(ended, tmp_path)
    saved = ended_at.timestamp() + SETTLING_SECONDS - 1
    os.utime(saved_files(JOB, tmp_path)[0], (saved, saved))
    job.write("algo-2", (3, "late"), started=1700000009999)
    lines = log_tail(bind(its_platform).read_log(ended, tmp_path))
    assert lines == ["algo-1: first", "algo-2: second", "algo-2: late"]


@pytest.mark.parametrize(
    "job",
    [JobStatus(JOB, "completed"), JobStatus(f"{JOB[:29]}-v1-0123abcd", "completed", nodes=2)],
)
def test_a_log_is_saved_once_each_node_has_a_file(tmp_path: Path, job: JobStatus) -> None:
    """A list of jobs has no number of nodes; a Processing job's name has none."""
    job = replace(job, changed_at=long_ago())
    for host, expected in (("script", False), ("node-0", False), ("node-1", True)):
        save_log({host: [LogLine(1, host, "line")]}, job.name, tmp_path)
        assert is_saved(job, tmp_path) is expected
    assert not is_saved(replace(job, changed_at=None), tmp_path)


def test_a_node_without_lines_is_final_after_an_hour(tmp_path: Path) -> None:
    save_log({"algo-1": [LogLine(1, "algo-1", "line")]}, JOB, tmp_path)
    ended_at = datetime.now(UTC) - timedelta(seconds=FINAL_SECONDS + 60)
    assert is_saved(replace(completed(), ended_at=ended_at), tmp_path)


def test_a_shorter_log_does_not_replace_the_saved_one(tmp_path: Path) -> None:
    """CloudWatch deletes old lines first."""
    lines = [LogLine(number, "algo-1", f"line {number}") for number in range(10)]
    [path] = save_log({"algo-1": lines}, JOB, tmp_path)
    os.utime(path, (1, 1))
    assert save_log({"algo-1": lines[8:]}, JOB, tmp_path) == [path]
    assert [*read_saved_log([path])] == lines
    assert path.stat().st_mtime > 1
    assert [*tmp_path.iterdir()] == [path]
    save_log({"algo-1": [*lines, LogLine(10, "algo-1", "late")]}, JOB, tmp_path)
    assert [line.text for line in read_saved_log([path])][-1] == "late"


def test_node_whose_lines_are_deleted_keeps_its_file(tmp_path: Path) -> None:
    [path] = save_log({"algo-1": [LogLine(1, "algo-1", "line")]}, JOB, tmp_path)
    assert save_log({"algo-1": [], "algo-2": []}, JOB, tmp_path) == [path]
    assert [line.text for line in read_saved_log([path])] == ["line"]


@pytest.mark.parametrize(
    "error",
    [
        ClientError(
            {"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "DescribeLogStreams"
        ),
        ClientError(
            {"Error": {"Code": "ThrottlingException", "Message": "slow"}}, "DescribeLogStreams"
        ),
        EndpointConnectionError(endpoint_url="https://logs"),
    ],
)
def test_log_that_cannot_be_read_is_a_warning_and_no_lines(
    job: Job,
    tmp_path: Path,
    its_platform: PlatformConfig,
    error: Exception,
    monkeypatch: Any,
    caplog: Any,
) -> None:
    def refuse(operation: str) -> None:
        raise error

    monkeypatch.setattr(job.logs, "get_paginator", refuse)
    assert list(bind(its_platform).read_log(FAILED, tmp_path)) == []
    assert JOB in caplog.text


@pytest.mark.parametrize("after", [[], ["-----END RSA PRIVATE KEY-----", "ValueError: boom"]])
def test_the_tail_shows_no_line_of_a_private_key_that_began_above_it(
    job: Job, tmp_path: Path, its_platform: PlatformConfig, after: list[str]
) -> None:
    lines = ["-----BEGIN RSA PRIVATE KEY-----", *["MIIEowIBAAKCAQEA"] * 50, *after]
    job.write("algo-1", *enumerate(lines))
    tail = log_tail(bind(its_platform).read_log(FAILED, tmp_path), 3)
    assert tail == ["algo-1: (hidden)"] * (3 - len(after[1:])) + [
        f"algo-1: {line}" for line in after[1:]
    ]


def test_full_disk_loses_the_files_and_not_what_the_log_says(
    job: Job,
    tmp_path: Path,
    its_platform: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    job.write("algo-1", (1, "first"), (3, "third"))
    job.write("algo-2", (2, "second password=hunter2"))
    monkeypatch.setattr("nodesweep.tasks.sweeps.folder.os.replace", full)
    lines = bind(its_platform).read_log(completed(), tmp_path)
    assert f"log of {JOB}" in caplog.text and "[Errno 28]" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert log_tail(lines) == ["algo-1: first", "algo-2: second password=(hidden)", "algo-1: third"]
