"""Read the new lines of a running job from CloudWatch Logs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from nodesweep.errors import suppress_codes
from nodesweep.launch.sagemaker.logs import log_group
from nodesweep.scaling.secrets import LogHider

_LATE_MILLISECONDS = 10_000
"""Overlap of two polls in ms, because nodes deliver lines late; duplicates are dropped."""


class CloudWatchLog:
    """The log of a training or Processing job; see nodesweep.launch.protocol.JobLog."""

    def __init__(self, logs: Any, job_name: str, since: datetime) -> None:
        self._logs, self._job_name, self._group = logs, job_name, log_group(job_name)
        self._since_milliseconds = int(since.timestamp() * 1000)
        self._next_token: str | None = None
        self._hiders: dict[str, LogHider] = {}
        """The filter that hides secrets, by log stream."""
        self._seen: dict[str, int] = {}
        """The time of each line since `_since_milliseconds`, by its ID."""

    @property
    def location(self) -> str:
        """A description of where the full log is."""
        return f"CloudWatch Logs, {self._group}, {self._job_name}/*"

    @property
    def has_more(self) -> bool:
        """True if a further page of existing lines is ready to be read."""
        return self._next_token is not None

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Yield the new lines of the next page (1 MB, 10,000 lines): one FilterLogEvents call."""
        prefix = f"{self._job_name}/"
        streams: dict[str, list[dict[str, Any]]] = {}
        for event in self._next_page(prefix):
            # A platform may ignore the prefix.
            if event["logStreamName"].startswith(prefix) and event["eventId"] not in self._seen:
                self._seen[event["eventId"]] = event["timestamp"]
                streams.setdefault(event["logStreamName"], []).append(event)
        for stream, events in streams.items():
            hider = self._hiders.setdefault(stream, LogHider())
            host = stream.removeprefix(prefix).rsplit("-", 1)[0]
            texts = hider.hide(event["message"].rstrip() for event in events)
            yield from (
                (event["timestamp"], f"{host}: {text}")
                for event, text in zip(events, texts, strict=True)
            )
        if self._next_token is None and self._seen:
            # A page token is valid only for an unchanged query.
            newest = max(self._seen.values())
            since = max(self._since_milliseconds, newest - _LATE_MILLISECONDS)
            self._since_milliseconds = since
            self._seen = {line: at for line, at in self._seen.items() if at >= since}

    def _next_page(self, prefix: str) -> list[dict[str, Any]]:
        token = {"nextToken": self._next_token} if self._next_token is not None else {}
        with suppress_codes("ResourceNotFoundException"):
            page = self._logs.filter_log_events(
                logGroupName=self._group,
                logStreamNamePrefix=prefix,
                startTime=self._since_milliseconds,
                **token,
            )
            self._next_token = page.get("nextToken")
            return list(page["events"])
        return []  # the account's first job creates the group
