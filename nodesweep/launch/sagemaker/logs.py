"""Download a job's whole log once, to one file per node below reports/SWEEP_ID/logs/.

Each line starts with its UTC time, and secrets are masked. At most 8 MiB from the start of a node's
log and 1 MiB from its end are saved, with a line about the gap; every reader of an ended job's log,
including the report, uses these files.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nodesweep.aws.platform import aws_client, patient
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import best_effort, error_code
from nodesweep.launch.sagemaker.validation_request import LOG_GROUP as PROCESSING_LOG_GROUP
from nodesweep.launch.saved_logs import BY_TIME, read_saved_log, write_log
from nodesweep.scaling import names
from nodesweep.scaling.job import LogLine
from nodesweep.scaling.secrets import LogHider

logger = logging.getLogger("nodesweep.results")
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MAX_FIRST_BYTES = 8 * 1024 * 1024
"""Bytes saved from the start of a node's log: nine calls, as a page of GetLogEvents holds 1 MiB."""


def log_group(job_name: str) -> str:
    """Return the log group of one of nodesweep's training or Processing jobs."""
    is_training = names.sweep_of_validation_job(job_name) is None
    return LOG_GROUP if is_training else PROCESSING_LOG_GROUP


@patient
def read_job_log(
    platform: PlatformConfig,
    job_name: str,
    folder: Path,
    completed: bool,
    own_name: Callable[[str], str] = str,
) -> Iterable[LogLine]:
    """Return all nodes' lines of an ended job's log in time order, and save the log in `folder`.

    A completed job's log is downloaded once. Any other job's is downloaded again, because its last
    lines matter and may arrive late; the saved copy is used if the platform has deleted its own. A
    log that cannot be read only causes a warning, and one that cannot be saved is returned anyway.
    `own_name` returns the name of the job's log streams.
    """
    pattern = names.log_file(job_name, "*")
    if not completed or not any(folder.glob(pattern)):
        with best_effort(f"the log of {job_name} can't be read"):
            logs, streams_of = aws_client("logs", platform), own_name(job_name)
            try:
                save_log(logs, job_name, folder, streams_of)
            except OSError as error:
                logger.warning("the log of %s can't be saved: %s", job_name, error)
                group, of_nodes = log_group(job_name), _streams_by_host(logs, streams_of).items()
                return list(
                    heapq.merge(
                        *(_lines_of_node(logs, group, *node) for node in of_nodes), key=BY_TIME
                    )
                )
    return read_saved_log(sorted(folder.glob(pattern)))


def save_log(logs: Any, job_name: str, folder: Path, streams_of: str | None = None) -> list[Path]:
    """Save the log of every node of an ended job, and return the files.

    A node without a log has no file. `streams_of` is the job in the names of the log streams, if it
    is called otherwise there.
    """
    group = log_group(job_name)
    return [
        write_log(
            folder / names.log_file(job_name, host), _lines_of_node(logs, group, host, streams)
        )
        for host, streams in _streams_by_host(logs, streams_of or job_name).items()
    ]


def _streams_by_host(logs: Any, job_name: str) -> dict[str, list[str]]:
    """Return the log streams of every node.

    A spot job has one for each start of a node, named after the time of that start.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    try:
        pages = logs.get_paginator("describe_log_streams").paginate(
            logGroupName=log_group(job_name), logStreamNamePrefix=f"{job_name}/"
        )
        for page in pages:
            for stream in page["logStreams"]:
                name = stream["logStreamName"]
                found[name.split("/")[-1].rsplit("-", 1)[0]].append(name)
    except logs.exceptions.ClientError as error:
        if error_code(error) == "ResourceNotFoundException":
            # The account's first job creates the group.
            return {}
        raise
    return {host: sorted(streams) for host, streams in found.items()}


def _lines_of_node(logs: Any, group: str, host: str, streams: list[str]) -> Iterator[LogLine]:
    for stream in streams:
        yield from _lines_of_stream(logs, group, host, stream)


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
