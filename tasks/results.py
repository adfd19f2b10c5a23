"""What a finished job left behind: its metrics file in S3 and the last lines of its log."""

from __future__ import annotations

import json
import logging
import lzma
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any

from configs.models import PlatformConfig
from scaling import names
from scaling.logged import LogLine
from scaling.secrets import MAX_KEY_LINES, LogHider
from tasks.errors import best_effort, error_code
from tasks.platform import aws_client, patient
from tasks.storage import is_missing

logger = logging.getLogger("nodesweep.results")
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LOG_TAIL_LINES = 500
"""Of each node, one call: what toolkit and launcher say after a program's last words is up to a hundred lines."""
_MOST_EVENTS = 10_000
"""Of one GetLogEvents call; it ends at 1 MB, too."""
_MAX_METRICS_BYTES = 8 * 1024 * 1024
"""Of metrics.json: the shipped program keeps 1,000 step times, tens of KB; JSON in memory is a multiple of its size."""
_MAX_METRICS_DEPTH = 32
_MAX_UNPACKED_BYTES = 16 * 1024**3
"""Of the archive, up to where metrics.json lies in it: minutes of reading, and a stop for one of zeros."""
_TOO_DEEP = f"its {names.METRICS_FILE} is nested more than {_MAX_METRICS_DEPTH} deep"


def read_metrics(s3: Any, bucket: str, key: str) -> dict[str, Any] | None:
    """metrics.json out of a job's output.tar.gz; None where the program wrote none, or none that can be used.

    The archive is read as a stream and never held: a job may put its whole model into it.
    """
    place = f"s3://{bucket}/{key}"
    try:
        answer = s3.get_object(Bucket=bucket, Key=key)
    except s3.exceptions.ClientError as error:
        if is_missing(s3, bucket, key, error):
            return None
        raise
    try:
        metrics = _parse_metrics(_metrics_in(answer["Body"]))
    except _Unusable as error:
        logger.warning("%s: %s; the job counts without the metrics of its program", place, error)
        return None
    except (tarfile.TarError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        logger.warning("%s holds no readable %s: %s", place, names.METRICS_FILE, error)
        return None
    return metrics if isinstance(metrics, dict) else None


class _Unusable(Exception):
    """What a program wrote is beyond a limit; the message says which."""


def _metrics_in(archive: Any) -> bytes | None:
    """The content of the metrics.json that is nearest to the archive's root, None without one."""
    found: tuple[int, bytes | _Unusable] | None = None
    unpacked_bytes = 0
    with tarfile.open(fileobj=archive, mode="r|*") as tar:
        for member in tar:
            unpacked_bytes += member.size
            if unpacked_bytes > _MAX_UNPACKED_BYTES:
                if found:
                    break
                raise _Unusable(f"it unpacks to more than {_MAX_UNPACKED_BYTES} bytes, and is read no further")
            depth = member.name.count("/")
            if not member.isfile() or member.name.split("/")[-1] != names.METRICS_FILE:
                continue
            if found is None or depth < found[0]:
                if member.size > _MAX_METRICS_BYTES:
                    said = f"its {member.name} has {member.size} bytes, {_MAX_METRICS_BYTES} are read at most"
                    found = (depth, _Unusable(said))
                    continue
                stream = tar.extractfile(member)
                found = (depth, stream.read() if stream else b"")
    content = found[1] if found else None
    if isinstance(content, _Unusable):
        raise content
    return content


def _parse_metrics(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        metrics = json.loads(content)
    except RecursionError:
        raise _Unusable(_TOO_DEEP) from None
    level, depth = [metrics], 0
    while level:  # what is parsed is written out again by code that recurses
        depth += 1
        if depth > _MAX_METRICS_DEPTH:
            raise _Unusable(_TOO_DEEP)
        lists = [
            value if isinstance(value, list) else value.values() for value in level if isinstance(value, dict | list)
        ]
        level = [value for values in lists for value in values if isinstance(value, dict | list)]
    return metrics


def read_log_tail(logs: Any, job_name: str, lines: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines of every node of a job, merged by time, each with its node's name.

    Empty without a log, and with a warning where it can't be read: the job's outcome counts without it.
    """
    merged: list[tuple[int, str]] = []
    with best_effort(f"the log of {job_name} can't be read"):
        merged = _last_events(logs, job_name, lines)
    return [text for _, text in sorted(merged, key=lambda entry: entry[0])]


def _last_events(logs: Any, job_name: str, lines: int) -> list[tuple[int, str]]:
    """(time, text) of the last lines of every node. More are read: a private key's lines are told by its first."""
    merged: list[tuple[int, str]] = []
    for stream, host in log_streams(logs, job_name):
        events = logs.get_log_events(
            logGroupName=LOG_GROUP, logStreamName=stream, limit=lines + MAX_KEY_LINES, startFromHead=False
        )["events"]
        texts = LogHider().hide(event["message"].rstrip() for event in events)
        shown = [(event["timestamp"], f"{host}: {text}") for event, text in zip(events, texts, strict=True)]
        merged += shown[-lines:]
    return merged


def read_log_ends(logs: Any, job_name: str) -> list[LogLine]:
    """The first and the last lines of every node of a job, in time order: each up to 1 MB or 10,000 lines.

    Two calls for each node; what both bring, where a log is short, is there twice. Empty without a log, and with a
    warning where it can't be read.
    """
    lines: list[LogLine] = []
    with best_effort(f"the log of {job_name} can't be read; what its program logged of itself is not known"):
        for stream, host in log_streams(logs, job_name):
            for from_head in (True, False):
                page = logs.get_log_events(
                    logGroupName=LOG_GROUP, logStreamName=stream, limit=_MOST_EVENTS, startFromHead=from_head
                )
                lines += [LogLine(event["timestamp"], host, event["message"]) for event in page["events"]]
    return sorted(lines, key=lambda line: line.unix_milliseconds)


def log_streams(logs: Any, job_name: str) -> list[tuple[str, str]]:
    """(stream, host) of every node of a job that has a log."""
    try:
        pages = logs.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job_name}/"
        )
        streams = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
    except logs.exceptions.ClientError as error:
        if error_code(error) == "ResourceNotFoundException":
            return []
        raise
    return [(stream, stream.split("/")[-1].rsplit("-", 1)[0]) for stream in streams]


@patient
def read_job_metrics(platform: PlatformConfig, sweep: str, job_name: str) -> Mapping[str, Any] | None:
    """S3: the metrics.json that the training program wrote."""
    key = names.job_output_key(platform.prefix, sweep, job_name)
    return read_metrics(aws_client("s3", platform), platform.bucket, key)


@patient
def read_job_log(platform: PlatformConfig, job_name: str) -> list[str]:
    """CloudWatch Logs: the last lines of a job's nodes."""
    return read_log_tail(aws_client("logs", platform), job_name)


@patient
def read_job_log_ends(platform: PlatformConfig, job_name: str) -> list[LogLine]:
    """CloudWatch Logs: the first and last lines of a job's nodes, for what its program says of itself."""
    return read_log_ends(aws_client("logs", platform), job_name)
