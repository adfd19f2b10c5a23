"""Read the whole log of an ended job from CloudWatch Logs.

At most 8 MiB from the start of a log stream and 1 MiB from its end are read; a line marks the gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from nodesweep.errors import suppress_codes
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.validation_request import LOG_GROUP as PROCESSING_LOG_GROUP
from nodesweep.scaling import names
from nodesweep.scaling.job import LogLine
from nodesweep.scaling.secrets import LogHider

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MAX_FIRST_BYTES = 8 * 1024 * 1024
"""Bytes read from the start of a log stream; a page of GetLogEvents has up to 1 MiB."""


def log_group(job_name: str) -> str:
    """Return the log group of one of nodesweep's training or Processing jobs."""
    is_training = names.sweep_of_validation_job(job_name) is None
    return LOG_GROUP if is_training else PROCESSING_LOG_GROUP


def own_name(backend: Backend, job_name: str) -> str:
    """Return the job's name in SageMaker, which its log streams, metrics and output use."""
    if backend.platform.batch is None:
        return job_name
    from nodesweep.launch.sagemaker.batch import queued_training

    found = queued_training(backend).own_name(backend.client("sagemaker"), job_name)
    return job_name if found is None else found


def read_nodes(backend: Backend, job_name: str) -> Mapping[str, Iterable[LogLine]]:
    """Return the lines of every node of an ended job, with secrets masked."""
    logs, group = backend.client("logs"), log_group(job_name)
    return {
        host: chain.from_iterable(map(partial(_lines_of_stream, logs, group, host), streams))
        for host, streams in _streams_by_host(logs, own_name(backend, job_name)).items()
    }


def _streams_by_host(logs: Any, job_name: str) -> dict[str, list[str]]:
    """Return the log streams of every node.

    A node of a spot job has one stream per start, named after the start time.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    with suppress_codes("ResourceNotFoundException"):  # the account's first job creates the group
        pages = logs.get_paginator("describe_log_streams").paginate(
            logGroupName=log_group(job_name), logStreamNamePrefix=f"{job_name}/"
        )
        for page in pages:
            for stream in page["logStreams"]:
                name = stream["logStreamName"]
                found[name.split("/")[-1].rsplit("-", 1)[0]].append(name)
    return {host: sorted(streams) for host, streams in found.items()}


def _lines_of_stream(logs: Any, group: str, host: str, stream: str) -> Iterator[LogLine]:
    """Yield a stream's lines: the first MAX_FIRST_BYTES page by page, then the last page."""
    query: dict[str, Any] = {"logGroupName": group, "logStreamName": stream}
    token: dict[str, str] = {}
    kept_bytes = last = 0
    hider = LogHider()
    while kept_bytes < MAX_FIRST_BYTES:
        page = logs.get_log_events(**query, startFromHead=True, **token)
        for line in _hide_events(page["events"], host, hider):
            kept_bytes += len(line.text.encode(errors="replace"))
            last = line.unix_milliseconds
            yield line
        if page["nextForwardToken"] == token.get("nextToken"):
            return
        token = {"nextToken": page["nextForwardToken"]}
    rest = _hide_events(
        logs.get_log_events(**query, startFromHead=False, startTime=last + 1)["events"],
        host,
        LogHider(),
    )
    if rest:
        yield LogLine(
            last,
            host,
            f"… lines omitted here, up to {rest[0].at}: only the first {MAX_FIRST_BYTES} bytes and"
            f" the last page are kept; full log: CloudWatch Logs, {group}, {stream}",
        )
    yield from rest


def _hide_events(events: list[dict[str, Any]], host: str, hider: LogHider) -> list[LogLine]:
    texts = hider.hide(event["message"].rstrip() for event in events)
    return [
        LogLine(event["timestamp"], host, text) for event, text in zip(events, texts, strict=True)
    ]
