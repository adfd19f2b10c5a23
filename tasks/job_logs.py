"""The whole log of a job, kept beside the report: a file for each node, below reports/SWEEP_ID/logs/.

Each line of a file begins with its time in UTC. Of one node at most 8 MiB from the beginning are kept and 1 MiB from
the end; a line between them says what is left out and where the whole log is. What has the shape of a secret is hidden.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from configs.models import PlatformConfig
from scaling import names
from scaling.secrets import LogHider
from tasks.errors import best_effort
from tasks.files import written_atomically
from tasks.platform import aws_client, patient
from tasks.results import LOG_GROUP, LOG_TAIL_LINES, log_streams

logger = logging.getLogger("nodesweep.results")
MAX_FIRST_BYTES = 8 * 1024 * 1024
"""Of a node's log: what is kept of its beginning. A page of GetLogEvents has 1 MiB, so that it takes nine calls."""


class LogLine(NamedTuple):
    """A line of a node's log and when it was written, ISO time in UTC, which sorts as text does."""

    at: str
    host: str
    text: str


def keep_log(logs: Any, job_name: str, folder: Path) -> list[Path]:
    """Write the log of every node of a job that has ended; returns the files. A node without a log gets none."""
    streams: defaultdict[str, list[str]] = defaultdict(list)
    for stream, host in log_streams(logs, job_name):
        streams[host].append(stream)
    paths = []
    for host, of_host in streams.items():
        path = folder / names.log_file(job_name, host)
        with written_atomically(path) as file:
            for stream in sorted(of_host):  # a spot job that lost its nodes has one for each start, named by its time
                for line in _lines_of_stream(logs, stream):
                    file.write(line.encode(errors="replace"))
        paths.append(path)
    return paths


def _lines_of_stream(logs: Any, stream: str) -> Iterator[str]:
    """Its lines as they are kept, each with its end."""
    query: dict[str, Any] = {"logGroupName": LOG_GROUP, "logStreamName": stream}
    token: dict[str, str] = {}
    kept_bytes = last = 0
    hider = LogHider()
    while kept_bytes < MAX_FIRST_BYTES:
        page = logs.get_log_events(**query, startFromHead=True, **token)
        for event, line in zip(page["events"], _lines(page["events"], hider), strict=True):
            kept_bytes += len(line.encode(errors="replace"))
            last = event["timestamp"]
            yield line
        if page["nextForwardToken"] == token.get("nextToken"):
            return
        token = {"nextToken": page["nextForwardToken"]}
    rest = logs.get_log_events(**query, startFromHead=False, startTime=last + 1)["events"]
    if rest:
        yield (
            f"{_iso(last)} … lines are left out here, up to {_iso(rest[0]['timestamp'])}: the first "
            f"{MAX_FIRST_BYTES} bytes are kept and the last page; the whole log: CloudWatch Logs, {LOG_GROUP}, "
            f"{stream}\n"
        )
    yield from _lines(rest, LogHider())


def _lines(events: list[dict[str, Any]], hider: LogHider) -> list[str]:
    texts = hider.hide(event["message"].rstrip() for event in events)
    return [f"{_iso(event['timestamp'])} {text}\n" for event, text in zip(events, texts, strict=True)]


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_kept(paths: list[Path]) -> Iterator[LogLine]:
    """The lines of kept files, merged by time; they are read as they are needed."""
    return heapq.merge(*(_lines_of_file(path) for path in paths), key=lambda line: line.at)


def _lines_of_file(path: Path) -> Iterator[LogLine]:
    parsed = names.parse_log_file(path.name)
    host = parsed[1] if parsed else path.stem
    at = ""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            time, _, text = line.rstrip("\n").partition(" ")
            is_dated = time.endswith("Z") and time[:2].isdigit()
            at = time if is_dated else at  # a message of several lines has one time
            yield LogLine(at, host, text if is_dated else line.rstrip("\n"))


def kept_tail(folder: Path, job_name: str, lines: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines of every node of a job as they are kept here, merged by time: "algo-N: text"."""
    paths = sorted(folder.glob(names.log_file(job_name, "*")))
    last = [deque(_lines_of_file(path), maxlen=lines) for path in paths]
    return [f"{line.host}: {line.text}" for line in heapq.merge(*last, key=lambda line: line.at)]


@patient
def keep_job_log(platform: PlatformConfig, job_name: str, folder: Path, completed: bool) -> None:
    """CloudWatch Logs: the whole log of a job that has ended, into files; the job's outcome counts without it.

    That of a job which completed is read once; of any other the last lines, which may come late, are what matters.
    """
    if completed and any(folder.glob(names.log_file(job_name, "*"))):
        return
    with best_effort(f"the log of {job_name} can't be kept"):
        try:
            keep_log(aws_client("logs", platform), job_name, folder)
        except OSError as error:
            logger.warning("the log of %s can't be kept: %s", job_name, error)
