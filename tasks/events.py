"""What happens in a run, as one stream of events: whoever shows a run reads them, and no flow or
task knows how it is shown.

An event is a record of a logger below `nodesweep`. Most are its plain words, which Prefect keeps
too where a run is inside Prefect. `about()` adds to such a record what a view needs beside the
words: logger.info("…", extra=about("job-state", job=name)). What only a view needs (how far an
upload is, each line of a node's log) is told by `tell()`, at level DEBUG: Prefect keeps INFO and
above, so it gets none of that.

| event | facts |
|---|---|
| stage-begun, stage-ended, stage-skipped | `seconds` and `ok` where it ended |
| sweep-named | `sweep`; `folder`: where its report will lie; `is_recorded`: whether `--resume` \
can go on with it already |
| sweep-recorded | `sweep`: from here on it can |
| sweep-planned | `design`; `points`: of each its nodes, repeat, global batch size and kind (run; \
probe or check of a probe sweep), none of a design that decides on them later; `most_jobs`, \
`max_parallel_jobs`, `usd_per_hour` of a node, `cost_bound_usd`, `on_cancel` |
| sweep-decided | of a sequential or probe sweep: `points` that come next, as in sweep-planned, \
none where it is done; `later`: probes of several instance types that may follow, those that may \
be dropped until then marked so; `reason`; `answers`: `nodes`, `answer`, `brief` and `text` of \
each count that was looked at |
| points-left-out | `points` that memory rules out, of several instance types |
| sweep-kept | `points` of an earlier run that the design asks for no more |
| count-answered | of a sequential sweep, once it is done with a count: `count`, `answer` |
| job-submitted | |
| job-state | `state`, `wait_until`: Unix seconds at which a job that has not begun to train is \
given up; `why`: what the platform says of its waiting, "" for nothing |
| node-line | `host`, `kind` (nodesweep/scaling/outcome/line_kinds.py), `step` where the line tells
of one |
| point-ended | `status`, `train_seconds`, `is_projected`, `billable_seconds`, \
`submit_to_end_seconds`, `steps`, `reason`, `lines`: the last that matter; of a probe that ended \
early `whole_run_seconds` and `whole_run_steps`: its job's and its training's, had it been whole |
| progress | `what`: a long step, which its text says how far it is; `done`, `of` and `unit` where \
that can be counted |
| build-begun, build-ended | `build`: an image build's id |
| build-line | a line of an image build |
| image-fetched | what a build has fetched over the network, or found at hand |
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
"""The lines of nodes as Prefect keeps them: a few of each look. A view reads node-line events."""
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
    """One thing that happened. `job`, `nodes` and `stage` are None where it is of none."""

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
class _About:
    event: str
    stage: Stage | None
    job: str | None
    source: str | None
    facts: Mapping[str, Any]


def about(
    event: str, *, stage: Stage | None = None, job: str | None = None, **facts: Any
) -> dict[str, Any]:
    """The `extra` of a log record that is this event."""
    return {"about": _About(event, stage, job, None, facts)}


def tell(
    event: str,
    text: str,
    *,
    source: str,
    stage: Stage | None = None,
    job: str | None = None,
    **facts: Any,
) -> None:
    """Tell the views alone. `source` is what a logger's name would say: jobs, log, prepare."""
    if _progress.isEnabledFor(logging.DEBUG):
        mark = _About(event, stage, job, source, facts)
        _progress.debug("%s", text, extra={"about": mark})


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """Tell when a stage of a run begins and ends, and whether it ended well."""
    begun = time.monotonic()
    tell("stage-begun", f"{name} begins", source=name, stage=name)
    try:
        yield
    except BaseException:
        end_stage(name, begun, ok=False)
        raise
    end_stage(name, begun)


def end_stage(name: Stage, begun: float, ok: bool = True) -> None:
    """Tell that a stage that began at that monotonic time has ended."""
    seconds = time.monotonic() - begun
    words = "done" if ok else "ended early"
    tell(
        "stage-ended", f"{name} {words} after {seconds:.1f} s",
        source=name, stage=name, seconds=seconds, ok=ok,
    )  # fmt: skip


class Meter:
    """How far a long step is, told twice a second at most, from any thread.

    `what` names it to people: "upload of digits". Of bytes the time left is said too, by the rate
    so far.
    """

    def __init__(
        self,
        what: str,
        of: int,
        unit: Literal["bytes", "files"],
        stage: Stage,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._of, self._unit, self._stage = what, of, unit, stage
        self._monotonic = monotonic
        self._begun = monotonic()
        self._told = float("-inf")
        self._done = 0
        self._lock = threading.Lock()

    def add(self, amount: int = 1) -> None:
        """So much more is done."""
        with self._lock:
            self._done = min(self._of, self._done + amount)
            now = self._monotonic()
            if now - self._told < _METER_SECONDS and self._done < self._of:
                return
            self._told = now
            words = self._words(now - self._begun)
        tell(
            "progress", words,
            source=self._stage, stage=self._stage,
            what=self._what, done=self._done, of=self._of, unit=self._unit,
        )  # fmt: skip

    def _words(self, seconds: float) -> str:
        if self._unit == "files":
            return f"{self._what}: {self._done} of {self._of} files"
        rate = self._done / seconds if seconds > 0 else 0.0
        words = f"{self._what}: {_megabytes(self._done)} of {_megabytes(self._of)} MB"
        if rate > 0 and self._done < self._of:
            left = format_seconds((self._of - self._done) / rate)
            words += f", {_megabytes(rate)} MB/s, {left} left"
        return words


def _megabytes(of_bytes: float) -> str:
    return f"{of_bytes / 1e6:.1f}"


def read_event(record: logging.LogRecord) -> Event:
    """The event that a log record is. What tell() told has level INFO: only Prefect is to leave
    it out.
    """
    mark = getattr(record, "about", None)
    source = record.name.removeprefix(f"{ROOT}.")
    if not isinstance(mark, _About):
        mark = _About("message", None, None, None, {})
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
        nodes=key[0] if key else None,
        facts=mark.facts,
    )
