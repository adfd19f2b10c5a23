"""The state of a run, derived from its events, for the live view and for Ctrl-C's message.

Times come from the events (Unix seconds), so that a recorded run can be replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nodesweep.cli.views.plain import short_name
from nodesweep.configs.designs import RULES, DesignRules
from nodesweep.events import STAGES, Event, Stage
from nodesweep.scaling import names
from nodesweep.scaling.design.base import JobKind, may_end_early, validates
from nodesweep.scaling.formats import agree

RECENT_LINES = 100
LEAVES_JOBS = "Ctrl-C again exits at once and leaves the jobs running"
_ENDED = ("Completed", "Failed", "Stopped")
_STATES_OF_ENDED = {"Completed": "done", "Stopped": "stopped"}


@dataclass
class StageState:
    """The state of a stage."""

    state: Literal["waiting", "running", "done", "ended early", "as recorded"] = "waiting"
    begun: float | None = None
    seconds: float | None = None
    note: str = ""
    """Progress of the stage's long step."""


@dataclass
class PointState:
    """A planned point, with the state of its latest attempt."""

    nodes: int
    repeat: int
    batch: int | None = None
    kind: JobKind = "run"
    state: str = "waiting"
    """waiting, done, failed, stopped, left out, or the platform's state of a running job."""
    job: str | None = None
    begun: float | None = None
    trains_since: float | None = None
    wait_until: float | None = None
    why: str = ""
    """The platform's message for a job that is not training yet."""
    step: int | None = None
    steps: int | None = None
    """Total steps of the training, reported by the program or by a run of the same batch size."""
    train_seconds: float | None = None
    is_projected: bool = False
    job_seconds: float | None = None
    """Time from the platform's acceptance of the job to its end."""
    whole_run_seconds: float | None = None
    """Projected `job_seconds` of a whole job, for a probe that ended early."""
    arm: str = ""
    """Code of the arm in job names; "" in a sweep of one arm, whose points have no `place`."""
    place: str = ""
    """The arm and node count in words, such as 2 x ml.g5.xlarge."""
    usd_per_hour: float | None = None
    """Price of one node of the arm."""
    may_be_dropped: bool = False
    """True for a probe that is only requested if earlier results do not rule its arm out."""

    @property
    def key(self) -> tuple[str, int, int]:
        """Code of the arm, node count and repeat."""
        return self.arm, self.nodes, self.repeat

    @property
    def is_validation_run(self) -> bool:
        """True for a whole run that validates the projected times."""
        return validates(self.kind)

    @property
    def ends_early(self) -> bool:
        """True for a job that can finish before it has run all of its steps."""
        return may_end_early(self.kind)

    @property
    def runs(self) -> bool:
        """True while an attempt is running."""
        return self.state != "waiting" and not self.is_over

    @property
    def is_over(self) -> bool:
        """True once the point has ended or was left out."""
        return self.state in ("done", "failed", "stopped", "left out")


@dataclass
class RunState:
    """The state of a whole run, updated by `show` with each event."""

    started: float | None = None
    stages: dict[Stage, StageState] = field(
        default_factory=lambda: {name: StageState() for name in STAGES}
    )
    is_detached: bool = False
    """True if the command does not wait for the sweep."""
    sweep: str | None = None
    is_recorded: bool = False
    """True if `--resume` can continue the sweep."""
    builds: set[str] = field(default_factory=set)
    """Image builds in progress."""
    points: list[PointState] = field(default_factory=list)
    later: list[PointState] = field(default_factory=list)
    """Probes that may still be requested in a sweep of several arms."""
    rules: DesignRules = RULES["full"]
    """Rules of the sweep's design."""
    most_jobs: int | None = None
    decision: str = ""
    """Reason for the next jobs, and results so far; "" if nothing is decided during the sweep."""
    max_parallel_jobs: int = 1
    usd_per_hour: float | None = None
    usd_per_hour_by_type: Mapping[str, float | None] = field(default_factory=dict)
    cost_bound_usd: float | None = None
    on_cancel: str = "stop"
    ended_usd: float = 0.0
    validation: str | None = None
    """The Processing job that is validating the dataset, if any."""
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_LINES))
    log_path: str | None = None
    note: str = ""
    """Progress of the session before the first stage begins."""

    def show(self, event: Event) -> None:
        """Update the state with an event."""
        at = event.time.timestamp()
        if self.started is None:
            self.started = at
        take = getattr(self, "_on_" + event.event.replace("-", "_"), None)
        if take is not None:
            take(event, event.facts, at)

    def _on_message(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if event.stage == "session":
            self.note = event.text

    def _on_stage_begun(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if event.stage in self.stages:
            self.stages[event.stage] = StageState("running", begun=at)

    def _on_stage_ended(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if event.stage in self.stages:
            of = self.stages[event.stage]
            of.state, of.seconds = ("done" if facts["ok"] else "ended early"), facts["seconds"]
            of.note = ""

    def _on_stage_skipped(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if event.stage in self.stages:
            self.stages[event.stage] = StageState("as recorded")

    def _on_progress(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if event.stage in self.stages:
            self.stages[event.stage].note = event.text

    def _on_run_log(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self.log_path = facts.get("path")

    def _on_sweep_named(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self.sweep, self.is_recorded = facts["sweep"], facts["is_recorded"]

    def _on_sweep_recorded(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self.is_recorded = True

    def _on_build_begun(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self.builds.add(facts["build"])

    def _on_build_ended(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self.builds.discard(facts["build"])

    def _on_sweep_planned(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self.points = [PointState(**point) for point in facts["points"]]
        self.ended_usd = 0.0  # a resumed sweep reports its earlier jobs again
        self.rules = RULES[facts.get("design", "full")]
        self.most_jobs = facts.get("most_jobs")
        self.max_parallel_jobs = facts["max_parallel_jobs"]
        self.usd_per_hour, self.cost_bound_usd = facts["usd_per_hour"], facts["cost_bound_usd"]
        self.usd_per_hour_by_type = facts.get("usd_per_hour_by_type", {})
        self.on_cancel = facts["on_cancel"]

    def _on_sweep_decided(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        asked = self._add(facts)
        self.later = [PointState(**point) for point in facts.get("later", ())]
        known_so_far = "; ".join(each["brief"] for each in facts["answers"])
        self.decision = event.text + (f". So far: {known_so_far}" if known_so_far else "")
        for check in asked:
            if check.is_validation_run:  # only its probes report a number of steps
                probes = (each for each in self.points if each.key[:2] == check.key[:2])
                of = (each.steps for each in probes)
                check.steps = next(filter(None, of), None)

    def _on_sweep_kept(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        self._add(facts)

    def _on_points_left_out(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        keys = {PointState(**point).key for point in facts["points"]}
        for point in self.points:
            if point.key in keys:
                point.state = "left out"

    def _add(self, facts: Mapping[str, Any]) -> list[PointState]:
        known = {point.key for point in self.points}
        points = [PointState(**point) for point in facts["points"]]
        self.points += [point for point in points if point.key not in known]
        return points

    def _on_job_submitted(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        point = self._point(event)
        if point is not None:
            point.job, point.state, point.begun = event.job, "Starting", at
            point.trains_since = point.wait_until = point.step = None
            point.why = ""
            point.train_seconds = point.job_seconds = point.whole_run_seconds = None
            point.is_projected = False

    def _on_job_state(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if event.stage == "dataset":
            is_over = facts["state"] in _ENDED
            self.validation = None if is_over else event.job
            self.stages["dataset"].note = "" if is_over else f"Spark: {event.text}"
            return
        point = self._point(event)
        if point is None or (not point.runs and point.job == event.job):
            return
        point.job, point.state = event.job, facts["state"]
        point.begun = point.begun or at
        point.wait_until, point.why = facts.get("wait_until"), facts.get("why", "")
        if point.wait_until is None and point.trains_since is None:
            point.trains_since = at

    def _on_node_line(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        if facts["kind"] != "program" or not event.text.strip():
            return
        self.recent.append(f"{short_name(event.job)} {facts['host']}: {event.text}")
        point, step = self._point(event), facts.get("step")
        if point is not None and step is not None:
            point.step = max(step[0], point.step or 0)
            point.steps = step[1] or point.steps

    def _on_point_ended(self, event: Event, facts: Mapping[str, Any], at: float) -> None:
        point = self._point(event)
        if point is None:
            return
        point.job = event.job
        point.state = _STATES_OF_ENDED.get(facts["status"], "failed")
        point.train_seconds = facts["train_seconds"] if point.state == "done" else None
        point.is_projected = facts.get("is_projected", False)
        point.job_seconds = facts["submit_to_end_seconds"]
        point.whole_run_seconds = facts.get("whole_run_seconds")
        point.steps = facts.get("whole_run_steps") or point.steps
        got = facts.get("instance_type") or ""  # with fallbacks, the type of all jobs from here on
        self.usd_per_hour = self.usd_per_hour_by_type.get(got, self.usd_per_hour)
        price = self._price(point)
        if price is not None and facts["billable_seconds"] is not None:
            self.ended_usd += point.nodes * facts["billable_seconds"] * price / 3600
        steps = facts["steps"]
        if point.state == "done" and steps is not None:
            point.step = steps
            for other in self.points:
                if other.batch is not None and other.batch == point.batch:
                    other.steps = other.steps or steps

    def _point(self, event: Event) -> PointState | None:
        key = names.parse_job_name(event.job) if event.job else None
        return next(
            (each for each in self.points if key is not None and each.key == key.point), None
        )

    def _price(self, point: PointState) -> float | None:
        return point.usd_per_hour if point.arm else self.usd_per_hour

    def cost_so_far_usd(self, now: float) -> float | None:
        """Return the cost in USD so far, running jobs included; None if a price is unknown."""
        if None in map(self._price, self.points) or (self.usd_per_hour is None and not self.points):
            return None
        node_hours_usd = sum(
            point.nodes * max(0.0, now - point.trains_since) * (self._price(point) or 0.0)
            for point in self.points
            if point.runs and point.trains_since is not None
        )
        return self.ended_usd + node_hours_usd / 3600

    def interrupt_text(self, resume_command: str | None) -> str:
        """Describe what Ctrl-C stops and leaves running, and how to resume or start again."""
        running = self._running()
        done = sum(point.state == "done" for point in list(self.points))
        jobs = f"{len(running)} job(s) ({', '.join(running[:8])})"
        if self.validation is not None:
            words = f"ending; stopping the Processing job {self.validation}"
        elif not running and self.builds:
            words = "ending; stopping the image build"
        elif not running:
            words = "ending; no jobs are running"
        elif self.on_cancel == "leave":
            words = f"ending; {jobs} keep running, as set by sweep.on_cancel"
        else:
            words = f"ending; stopping {jobs}"
        if self.points:
            words += (
                f"; {done} of {len(self.points)} points {agree(done, 'is', 'are')} done and kept"
            )
        then = self.next_command(resume_command)
        return words if then is None else f"{words}. {then[0].upper()}{then[1:]}"

    def next_command(self, resume_command: str | None) -> str | None:
        """Return the command to resume an interrupted sweep, or to start an unrecorded one again.

        The result is None if the command has no sweep.
        """
        if self.sweep is None or resume_command is None:
            return None
        if self.is_recorded:
            return f"resume with: {resume_command} --resume {self.sweep}"
        return f"start again with: {resume_command}{' --detach' if self.is_detached else ''}"

    def second_interrupt_text(self) -> str:
        """Describe the effect of a second Ctrl-C."""
        if self._running() or self.validation is not None:
            return LEAVES_JOBS
        left = " and leaves the build running" if self.builds else ""
        return f"Ctrl-C again exits at once{left}"

    def aborted_text(self, resume_command: str | None) -> str:
        """Describe what a second Ctrl-C may have left running, and how to continue."""
        words = "exited at once"
        if self.validation is not None:
            words += f"; the Processing job {self.validation} may still be running"
        elif self.is_recorded:
            words += f"; jobs may still be running: stop them with `nodesweep stop {self.sweep}`"
        elif self.builds:
            words += "; the image build may still be running"
        then = self.next_command(resume_command)
        if then is None:
            return words
        return f"{words}, or {then}" if self.is_recorded else f"{words}; {then}"

    def _running(self) -> list[str]:
        return [short_name(point.job) for point in list(self.points) if point.runs]
