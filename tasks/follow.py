"""The logs of running jobs, followed: new lines of all nodes, merged by time, into the run's own log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tasks.errors import error_code, is_passing
from tasks.results import LOG_GROUP

logger = logging.getLogger("nodesweep.log")
MAX_LINES_PER_POLL = 10
_LATE_MILLISECONDS = 10_000
"""Nodes send their lines each at its own time: what may still come is asked for again, and said once."""


@dataclass
class _Place:
    """How far a job's log was read; `said` has the time of each line from `since_milliseconds` on, by its id."""

    since_milliseconds: int
    next_token: str | None = None
    said: dict[str, int] = field(default_factory=dict)


class LogFollower:
    """Follows all nodes of each job; a job whose log can't be read is no longer followed."""

    def __init__(self, logs: Any) -> None:
        self._logs = logs
        self._places: dict[str, _Place] = {}
        self._unreadable: set[str] = set()

    def begin(self, job_names: Iterable[str], since: datetime) -> None:
        """Follow these jobs from `since` on; those that are followed already go on where they are."""
        for name in job_names:
            self._places.setdefault(name, _Place(int(since.timestamp() * 1000)))

    def poll(self, job_name: str) -> None:
        """Log the lines that are new since the last poll: the last few of them, and how many were left out.

        One FilterLogEvents call; where it has a further page (1 MB, 10,000 lines), the next poll reads that.
        """
        if job_name in self._unreadable:
            return
        try:
            lines = sorted(self._new_lines(job_name), key=lambda line: line[0])
        except (BotoCoreError, ClientError) as error:
            if not is_passing(error):
                self._unreadable.add(job_name)
                logger.warning("the log of %s can't be followed: %s", job_name, error)
            return
        left_out = len(lines) - MAX_LINES_PER_POLL
        if left_out > 0:
            logger.info("%s: … %d lines left out", job_name, left_out)
        for _, text in lines[-MAX_LINES_PER_POLL:]:
            logger.info("%s", text)

    def _new_lines(self, job_name: str) -> Iterator[tuple[int, str]]:
        """(time, "host: text") of each line of the next page that was not said yet."""
        place, prefix = self._places[job_name], f"{job_name}/"
        for event in self._next_page(place, prefix):
            # A platform may not keep to the prefix.
            if event["logStreamName"].startswith(prefix) and event["eventId"] not in place.said:
                place.said[event["eventId"]] = event["timestamp"]
                host = event["logStreamName"].removeprefix(prefix).rsplit("-", 1)[0]
                yield event["timestamp"], f"{host}: {event['message'].rstrip()}"
        if place.next_token is None and place.said:  # until then the query must stay as it is
            newest = max(place.said.values())
            place.since_milliseconds = max(place.since_milliseconds, newest - _LATE_MILLISECONDS)
            place.said = {line: at for line, at in place.said.items() if at >= place.since_milliseconds}

    def _next_page(self, place: _Place, prefix: str) -> list[dict[str, Any]]:
        token = {"nextToken": place.next_token} if place.next_token is not None else {}
        try:
            page = self._logs.filter_log_events(
                logGroupName=LOG_GROUP, logStreamNamePrefix=prefix, startTime=place.since_milliseconds, **token
            )
        except ClientError as error:
            if error_code(error) == "ResourceNotFoundException":  # the group comes with the account's first job
                return []
            raise
        place.next_token = page.get("nextToken")
        return list(page["events"])
