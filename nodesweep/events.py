r"""A run's events, as one stream that views read; flows and tasks know nothing about views.

An event is a record of a logger below `nodesweep`. event_extra() attaches the facts for views to a
record: logger.info("…", extra=event_extra("job-state", job=name)). emit() logs events that only
views need. Their level is DEBUG, which Prefect does not keep.

| event | facts |
|---|---|
| stage-begun, stage-ended, stage-skipped | `seconds` and `ok` once ended |
| sweep-named | `sweep`; `folder`: folder of its report; `is_recorded`: true if `--resume` can \
already continue it |
| sweep-recorded | `sweep`: from now on `--resume` can continue it |
| sweep-planned | `design`; `points`: nodes, repeat, global batch size and kind (run; in a probe \
sweep, probe or check) of each point and, with several arms, its `arm` (code in job names), \
`place` in words and `usd_per_hour`; empty if the design chooses points later; `most_jobs`, \
`max_parallel_jobs`, `usd_per_hour` of a node, `cost_bound_usd`, `on_cancel`; with fallback \
types `usd_per_hour_by_type` |
| sweep-decided | if the design requests points step by step: `points` to run next, as in \
sweep-planned, empty once the design is done; `later`: with several arms, the probes that may \
follow, marked if they may be dropped; `reason`; `answers`: `nodes`, `answer`, `brief` and \
`text` for each node count that was decided |
| points-left-out | `points` that do not fit into memory, in a sweep with several arms |
| sweep-kept | `points` of an earlier run that the design no longer needs |
| count-answered | when a sequential sweep has decided a node count: `count`, `answer` |
| job-submitted | |
| job-state | `state`; `wait_until`: time (Unix seconds) at which a job that has not begun to \
train is stopped; `why`: the platform's reason for the wait, "" if it gives none |
| node-line | `host`, `kind` (nodesweep/scaling/outcome/line_kinds.py), `step` if the line has one |
| point-ended | `status`, `instance_type` (null if the job got none), `train_seconds`, \
`is_projected`, `billable_seconds`, `submit_to_end_seconds`, `steps`, `reason`, \
`lines`: the last relevant log lines; for a probe that ended early, `whole_run_seconds` and \
`whole_run_steps`: projections for a complete job |
| progress | `what`: name of a long step, whose progress is in the text; `done`, `of` and `unit` \
if the progress can be counted |
| build-begun, build-ended | `build`: an image build's ID |
| build-line | a line of an image build |
| image-fetched | what a build has downloaded, or found in a cache |
| message | anything else |
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from nodesweep.scaling import names
from nodesweep.scaling.formats import format_seconds

Stage = Literal["session", "preflight", "dataset", "image", "sweep", "report"]
STAGES: tuple[Stage, ...] = ("preflight", "dataset", "image", "sweep", "report")
ROOT = "nodesweep"
NODE_LOG = f"{ROOT}.log"
"""Logger of the few node lines per poll that Prefect keeps. Views read node-line events."""
PROGRESS = f"{ROOT}.progress"
_STAGE_OF_LOGGER: dict[str, Stage] = {
    "session": "session",
    "platform": "session",
    "preflight": "preflight",
    "pricing": "preflight",
    "dataset": "dataset",
    "image": "image",
    "flow": "sweep",
    "sweep": "sweep",
    "jobs": "sweep",
    "log": "sweep",
    "results": "sweep",
    "report": "report",
}
_METER_SECONDS = 0.5
_progress = logging.getLogger(PROGRESS)


@dataclass(frozen=True)
class Event:
    """One event of a run; `job`, `nodes` and `stage` are None if they do not apply."""

    time: datetime
    event: str
    text: str
    source: str = "session"
    """The logger's name below `nodesweep`."""
    level: int = logging.INFO
    stage: Stage | None = None
    job: str | None = None
    nodes: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _EventData:
    event: str
    stage: Stage | None
    job: str | None
    source: str | None
    facts: Mapping[str, Any]


def event_extra(
    event: str, *, stage: Stage | None = None, job: str | None = None, **facts: Any
) -> dict[str, Any]:
    """Return the `extra` argument that makes a log record this event."""
    return {"about": _EventData(event, stage, job, None, facts)}


def emit(
    event: str,
    text: str,
    *,
    source: str,
    stage: Stage | None = None,
    job: str | None = None,
    **facts: Any,
) -> None:
    """Send an event to the views only.

    Args:
        event: a row of the module's table.
        text: the event in words.
        source: the logger name to show: jobs, log, prepare.
        stage: the stage of the run; by default derived from the source.
        job: the training job's name.
        facts: the row's facts.
    """
    if _progress.isEnabledFor(logging.DEBUG):
        mark = _EventData(event, stage, job, source, facts)
        _progress.debug("%s", text, extra={"about": mark})


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """Emit an event when a stage begins, and another with the outcome when it ends."""
    begun = time.monotonic()
    emit("stage-begun", f"{name} begins", source=name, stage=name)
    try:
        yield
    except BaseException:
        end_stage(name, begun, ok=False)
        raise
    end_stage(name, begun)


def end_stage(name: Stage, begun: float, ok: bool = True) -> None:
    """Emit the end of a stage that began at the monotonic time `begun`."""
    seconds = time.monotonic() - begun
    words = "done" if ok else "ended early"
    emit(
        "stage-ended", f"{name} {words} after {seconds:.1f} s",
        source=name, stage=name, seconds=seconds, ok=ok,
    )  # fmt: skip


class Meter:
    """Progress of a long step, emitted at most twice a second, from any thread.

    `name` is the step as shown to users, e.g. "upload of digits". For bytes, the progress includes
    the remaining time at the average rate so far.
    """

    def __init__(
        self,
        name: str,
        of: int,
        unit: Literal["bytes", "files"],
        stage: Stage,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._of, self._unit, self._stage = name, of, unit, stage
        self._monotonic = monotonic
        self._begun = monotonic()
        self._emitted_at = float("-inf")
        self._done = 0
        self._lock = threading.Lock()

    def add(self, amount: int = 1) -> None:
        """Add to the amount that is done."""
        with self._lock:
            self._done = min(self._of, self._done + amount)
            now = self._monotonic()
            if now - self._emitted_at < _METER_SECONDS and self._done < self._of:
                return
            self._emitted_at = now
            # Inside the lock; otherwise, another thread's older event could come last.
            emit(
                "progress", self._words(now - self._begun),
                source=self._stage, stage=self._stage,
                what=self._name, done=self._done, of=self._of, unit=self._unit,
            )  # fmt: skip

    def _words(self, seconds: float) -> str:
        if self._unit == "files":
            return f"{self._name}: {self._done} of {self._of} files"
        rate = self._done / seconds if seconds > 0 else 0.0
        words = f"{self._name}: {_megabytes(self._done)} of {_megabytes(self._of)} MB"
        if rate > 0 and self._done < self._of:
            left = format_seconds((self._of - self._done) / rate)
            words += f", {_megabytes(rate)} MB/s, {left} left"
        return words


def _megabytes(of_bytes: float) -> str:
    return f"{of_bytes / 1e6:.1f}"


def read_event(record: logging.LogRecord) -> Event:
    """Return the event of a log record.

    Events from emit() get level INFO, because DEBUG only keeps them out of Prefect.
    """
    mark = getattr(record, "about", None)
    source = record.name.removeprefix(f"{ROOT}.")
    if not isinstance(mark, _EventData):
        mark = _EventData("message", None, None, None, {})
    source = mark.source or source
    key = names.parse_job_name(mark.job) if mark.job else None
    return Event(
        time=datetime.fromtimestamp(record.created, UTC),
        event=mark.event,
        text=record.getMessage(),
        source=source,
        level=max(record.levelno, logging.INFO),
        stage=mark.stage or _STAGE_OF_LOGGER.get(source),
        job=mark.job,
        nodes=key.nodes if key else None,
        facts=mark.facts,
    )
