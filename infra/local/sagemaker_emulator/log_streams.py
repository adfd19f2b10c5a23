"""Streams log lines to CloudWatch Logs, so that users can follow a job or a build live."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import defaultdict
from typing import Any

FLUSH_INTERVAL_SECONDS = 0.5
EVENT_MAX_BYTES = 262_144 - 26
"""256 KiB minus the overhead of 26 bytes per event in PutLogEvents."""
_BATCH_MAX_EVENTS = 10_000
_BATCH_MAX_BYTES = 1_048_576
_CLOSE_DEADLINE_SECONDS = 30.0

logger = logging.getLogger(__name__)

Event = dict[str, Any]


class LogStreams:
    """A context manager for the log streams of a job or build, which are flushed on exit."""

    def __init__(
        self, logs: Any, group: str, interval_seconds: float = FLUSH_INTERVAL_SECONDS
    ) -> None:
        self._logs = logs
        self._group = group
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._streams: dict[str, str] = {}
        self._waiting: defaultdict[str, list[Event]] = defaultdict(list)
        self._latest_milliseconds: defaultdict[str, int] = defaultdict(int)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log-streams {group}", daemon=True)

    def __enter__(self) -> LogStreams:
        with contextlib.suppress(self._logs.exceptions.ResourceAlreadyExistsException):
            self._logs.create_log_group(logGroupName=self._group)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_DEADLINE_SECONDS)

    def open(self, host: str, stream: str) -> None:
        """Create a stream for the lines of a host."""
        self._logs.create_log_stream(logGroupName=self._group, logStreamName=stream)
        self._streams[host] = stream

    def write(self, host: str, line: str, unix_milliseconds: int) -> None:
        """Queue a line. Timestamps never decrease within a stream, as PutLogEvents requires."""
        with self._lock:
            self._latest_milliseconds[host] = max(
                self._latest_milliseconds[host], unix_milliseconds
            )
            self._waiting[host].append(
                {"timestamp": self._latest_milliseconds[host], "message": _fit(line)}
            )

    def _run(self) -> None:
        while not self._closed.wait(self._interval_seconds):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, defaultdict(list)
        for host, events in waiting.items():
            for batch in _batches(events):
                self._put(host, batch)

    def _put(self, host: str, batch: list[Event]) -> None:
        """Write a batch, or log an error and drop it, since logging must not stop the job."""
        try:
            self._logs.put_log_events(
                logGroupName=self._group, logStreamName=self._streams[host], logEvents=batch
            )
        except Exception:
            logger.exception(
                "%s: %d lines of %s could not be written", self._group, len(batch), host
            )


def _fit(line: str) -> str:
    """Truncate a line to EVENT_MAX_BYTES, and replace an empty line, which AWS rejects."""
    if len(line) * 4 > EVENT_MAX_BYTES:
        line = line.encode()[:EVENT_MAX_BYTES].decode(errors="ignore")
    return line or " "


def _batches(events: list[Event]) -> list[list[Event]]:
    batches: list[list[Event]] = []
    size_bytes = _BATCH_MAX_BYTES
    for event in events:
        event_bytes = len(event["message"].encode()) + 26
        if size_bytes + event_bytes > _BATCH_MAX_BYTES or len(batches[-1]) == _BATCH_MAX_EVENTS:
            batches.append([])
            size_bytes = 0
        batches[-1].append(event)
        size_bytes += event_bytes
    return batches
