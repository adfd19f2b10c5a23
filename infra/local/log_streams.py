"""Writes lines to CloudWatch Logs as they come, so that a user can follow a job or a build live."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import defaultdict
from typing import Any

FLUSH_INTERVAL_SECONDS = 0.5
EVENT_MAX_BYTES = 262_144 - 26
"""256 KiB less the 26 bytes of overhead that PutLogEvents counts per event."""
_BATCH_MAX_EVENTS = 10_000
_BATCH_MAX_BYTES = 1_048_576
_CLOSE_DEADLINE_SECONDS = 30.0

logger = logging.getLogger(__name__.removeprefix("nodesweep."))

Event = dict[str, Any]


class LogStreams:
    """The log streams of one job or build: one per host. Use as a context manager; leaving it
    writes what is left.
    """

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
        """Make the stream that lines of `host` go to."""
        self._logs.create_log_stream(logGroupName=self._group, logStreamName=stream)
        self._streams[host] = stream

    def write(self, host: str, line: str, unix_milliseconds: int) -> None:
        """Queue one line; times never run backwards within a stream, as PutLogEvents demands."""
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
        """A batch that is refused is reported and dropped:
        the log must not stop the job it tells of.
        """
        try:
            self._logs.put_log_events(
                logGroupName=self._group, logStreamName=self._streams[host], logEvents=batch
            )
        except Exception:
            logger.exception(
                "%s: %d lines of %s could not be written", self._group, len(batch), host
            )


def _fit(line: str) -> str:
    """An event has 1 to EVENT_MAX_BYTES bytes; a long line loses its end."""
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
