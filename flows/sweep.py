"""The sweep: one training job per point, in the planned order; a failed point does not lose the others."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from configs.models import BenchmarkConfig
from flows.ending import end_sweep
from flows.outcomes import collect_outcome, refused_outcome, say_outcome, with_warm_pool
from scaling import names
from scaling.budget import Allowance
from scaling.fail_fast import Candidate, code_digest, needs_smoke, next_to_start, reason_to_give_up
from scaling.outcome import TERMINAL, JobOutcome
from scaling.plan import PlannedPoint, SweepPlan
from scaling.request import ResolvedInputs, build_request
from tasks.board import SweepBoard
from tasks.claims import claim_job, withdraw_claim
from tasks.errors import JobRefused
from tasks.jobs import (
    JobLimits,
    QuotaReached,
    describe_training_jobs,
    list_training_jobs,
    submit_training_job,
    watch_training_jobs,
)
from tasks.owner import SweepOwner
from tasks.polling import Clock, intervals, utc_now
from tasks.quota import NodeSlots
from tasks.report import announce_budget
from tasks.stopping import release_pools_now, stop_training_jobs
from tasks.storage import is_code_proven

logger = logging.getLogger("nodesweep.sweep")
_STOP_GRACE_SECONDS = 600  # beyond max runtime: the upload of its output, and the platform's own slack
_LONGEST_QUOTA_PAUSE_SECONDS = 60.0


@dataclass
class _Attempt:
    """One try at a point; `tries_left` counts further ones that this run may make."""

    point: PlannedPoint
    number: int
    tries_left: int
    quota_deadline: float | None = None
    quota_pauses: Iterator[float] | None = None


@dataclass(frozen=True)
class SweepRun:
    """One outcome per attempt, and why the sweep was given up before its last point; None: it was not."""

    outcomes: list[JobOutcome]
    given_up: str | None


def run_sweep(
    config: BenchmarkConfig,
    plan: SweepPlan,
    inputs: ResolvedInputs,
    owner: SweepOwner,
    earlier_mark: str | None = None,
) -> SweepRun:
    """Run every planned point; one outcome per attempt, failed ones too. Ends its jobs as flows/ending.py says.

    A sweep that is stopped (`nodesweep stop`, another mark than `earlier_mark`) meanwhile submits nothing more: its
    remaining points have no outcome.
    """
    sweep = _Sweep(config, plan, inputs, earlier_mark)

    def release_pools() -> None:
        if config.training.keep_alive_seconds:
            release_pools_now(config.platform, inputs.sweep_id, sweep.known)

    try:
        sweep.run()
        release_pools()
    except BaseException as error:
        try:
            end_sweep(config, inputs.sweep_id, list(sweep.active), error, owner)
        finally:
            release_pools()  # of what has ended, where the others run on
        raise
    finally:
        sweep.slots.give_back_all()
    if config.training.keep_alive_seconds:
        sweep.outcomes = [with_warm_pool(config, outcome) for outcome in sweep.outcomes]
    outcomes = sorted(sweep.outcomes, key=lambda outcome: (outcome.nodes, outcome.repeat, outcome.attempt))
    return SweepRun(outcomes, sweep.given_up)


class _Sweep:
    """The queue of attempts, the jobs that run, what came of those that ended and what may still be started."""

    def __init__(
        self, config: BenchmarkConfig, plan: SweepPlan, inputs: ResolvedInputs, earlier_mark: str | None
    ) -> None:
        self.config, self.plan, self.inputs = config, plan, inputs
        self._earlier_mark, self._claimant = earlier_mark, uuid4().hex[:12]
        self.waiting = deque(_Attempt(point, 1, config.sweep.max_attempts - 1) for point in plan.points)
        self.active: dict[str, _Attempt] = {}
        self._earlier: frozenset[str] = frozenset()
        self._others: frozenset[str] = frozenset()
        self._never_sent: set[str] = set()
        self._earlier_places: frozenset[tuple[int, int, int] | None] = frozenset()
        self.outcomes: list[JobOutcome] = []
        self.slots = NodeSlots(config.sweep.concurrency_limit)
        self._allowance = Allowance(config, plan.usd_per_hour)
        self._budget_told = False
        self._is_limited = config.sweep.budget_usd is not None or config.sweep.max_retries is not None
        self._board = SweepBoard(inputs.sweep_id, len(plan.points))
        self._followed_until = utc_now()
        self._is_proven = not needs_smoke(config)
        self._ended: list[JobOutcome] = []
        self.given_up: str | None = None

    @property
    def known(self) -> list[str]:
        """Every job that this run knows of the sweep, whoever started it."""
        had_outcome = {outcome.job_name for outcome in self.outcomes} - self._never_sent
        return sorted({*self._earlier, *self._others, *self.active, *had_outcome})

    def run(self) -> None:
        """Until every point has its outcome, or none is left to try."""
        self._count_earlier()
        self._is_proven = self._is_proven or is_code_proven(self.config.platform, code_digest(self.config, self.inputs))
        while self.waiting or self.active:
            self._fill()
            self._board.show(self.outcomes)
            if self.active:
                self._settle_ended()
        self._board.show(self.outcomes, last=True)

    def _count_earlier(self) -> None:
        """The jobs that the sweep has already, which count and come first, since they need no money."""
        self._earlier = frozenset(list_training_jobs(self.config.platform, self.inputs.sweep_id))
        descriptions: list[dict[str, Any]] = []
        if self._earlier and self.config.sweep.budget_usd is not None:
            descriptions = describe_training_jobs(self.config.platform, sorted(self._earlier))
            # What was claimed and is not known was perhaps never sent: it starts as a new one does, within the budget.
            self._earlier = frozenset(description["TrainingJobName"] for description in descriptions)
        self._earlier_places = frozenset(map(names.parse_job_name, self._earlier))
        self.waiting = deque(sorted(self.waiting, key=self._is_new))
        for name in self._earlier:
            self._allowance.count(name)
        for description in descriptions:
            self._allowance.settle(description)

    def _fill(self) -> None:
        """Start jobs up to sweep.max_parallel_jobs, as far as the quota goes."""
        while self.waiting and len(self.active) < self.config.sweep.max_parallel_jobs:
            attempt = self._next()
            if attempt is None:
                return
            request = build_request(self.config, attempt.point, self.inputs, attempt.number)
            name = request["TrainingJobName"]
            counts = self._is_limited and name not in self._earlier
            claim = claim_job(self.config.platform, self.inputs.sweep_id, name, self._claimant, counts)
            if claim.stop_mark not in (None, self._earlier_mark):
                self._withdraw(name)
                self.waiting.appendleft(attempt)
                logger.warning("sweep %s was stopped; %d jobs are not run", self.inputs.sweep_id, len(self.waiting))
                self.waiting.clear()
                return
            if name not in self._earlier:
                self._allowance.forget(name)
                self._count_others(claim.jobs - {name})
                if self.active and self._allowance.budget_problem(name):  # those that run may cost less than they can
                    self._withdraw(name)
                    self.waiting.appendleft(attempt)
                    return
                if reason := self._limit_reached(name):
                    self._withdraw(name)
                    self._never_sent.add(name)
                    self._refuse(attempt, name, reason)
                    continue
                self._allowance.count(name)
            # Before the call: a job that was accepted is stopped with the others, whatever fails after that.
            self.active[name] = attempt
            try:
                self.slots.take(name, attempt.point.nodes)
                description = _submit(self.config, self.plan, attempt, request)
            except JobRefused as error:
                self._forget(name)
                self._withdraw(name)
                if name not in self._earlier:
                    self._allowance.forget(name)
                if _may_wait_for_quota(self.config, error, attempt, bool(self.active)):
                    self.waiting.appendleft(attempt)
                    return
                self._never_sent.add(name)
                self._refuse(attempt, name, str(error))
                continue
            # One that has ended since it was started here is settled with the others that end.
            if description["TrainingJobStatus"] in TERMINAL and name in self._earlier:
                self._forget(name)
                self._settle_earlier(attempt, description)

    def _next(self) -> _Attempt | None:
        """The attempt to start now, taken from those that wait; None while a first job shows whether the code runs."""
        candidates = [Candidate(attempt.point.nodes, not self._is_new(attempt)) for attempt in self.waiting]
        place = next_to_start(candidates, len(self.active), self._is_proven)
        if place is None:
            return None
        attempt = self.waiting[place]
        del self.waiting[place]
        return attempt

    def _give_up(self) -> None:
        """Where the program can't run, start nothing more and stop what runs; what has ended is kept."""
        reason = reason_to_give_up(self._ended)
        if reason is None or self.given_up is not None or not (self.waiting or self.active):
            return
        self.given_up = reason
        logger.error(
            "sweep %s goes no further, %d jobs are not started and %d are stopped: %s",
            self.inputs.sweep_id, len(self.waiting), len(self.active), reason,
        )  # fmt: skip
        self.waiting.clear()
        try:
            stop_training_jobs(self.config.platform, list(self.active))
        except JobRefused as error:
            logger.warning("%s", error)

    def _count_others(self, claimed: frozenset[str]) -> None:
        """Jobs that another run of this sweep has claimed since this one began: one sweep has one budget."""
        self._others |= claimed - self._earlier - self._allowance.node_seconds.keys()
        for name in claimed - self._allowance.node_seconds.keys():
            self._allowance.count(name)

    def _withdraw(self, name: str) -> None:
        withdraw_claim(self.config.platform, self.inputs.sweep_id, name, self._claimant)

    def _is_new(self, attempt: _Attempt) -> bool:
        return (attempt.point.nodes, attempt.point.repeat, attempt.number) not in self._earlier_places

    def _limit_reached(self, name: str) -> str | None:
        """Why sweep.max_retries or sweep.budget_usd keeps this attempt from starting; the first time an event tells."""
        if reason := self._allowance.retry_problem(name):
            return reason
        reason = self._allowance.budget_problem(name)
        if reason is not None and not self._budget_told:
            announce_budget(self.config.name, reason, self.inputs.sweep_id)
            self._budget_told = True
        return reason

    def _refuse(self, attempt: _Attempt, name: str, reason: str) -> None:
        self.outcomes.append(refused_outcome(self.config, name, attempt.point, attempt.number, reason))
        say_outcome(self.outcomes[-1])

    def _forget(self, name: str) -> _Attempt:
        self.slots.give_back(name)
        return self.active.pop(name)

    def _settle_earlier(self, attempt: _Attempt, description: Mapping[str, Any]) -> None:
        """A job that an earlier run ended: a completed one is the result, any other one gets a new attempt."""
        self._allowance.settle(description)
        outcome = collect_outcome(self.config, self.inputs.sweep_id, attempt.point, attempt.number, description)
        self.outcomes.append(outcome)
        logger.info("%s: %s by an earlier run", outcome.job_name, outcome.status)
        self._is_proven = self._is_proven or outcome.completed
        if not outcome.completed:
            further = _Attempt(attempt.point, attempt.number + 1, attempt.tries_left)
            (self.waiting.append if self._is_new(further) else self.waiting.appendleft)(further)

    def _settle_ended(self) -> None:
        """Wait for the next job to end, collect what ended, and put back what may pass on another try."""
        first_step = None if self._is_proven or not self.waiting else self.config.training.metric_definitions
        followed = self._followed_until
        ended = watch_training_jobs(
            self.config.platform,
            self.inputs.sweep_id,
            list(self.active),
            self.config.sweep.poll_interval_seconds,
            job_limits(self.config),
            followed,
            self._earlier_mark,
            first_step,
        )
        self._followed_until = utc_now()
        if not ended:
            logger.info("the code has reached its first step; the other points may start")
            self._is_proven = True
        for description in ended:
            attempt = self._forget(description["TrainingJobName"])
            if description["TrainingJobStatus"] not in TERMINAL:  # given up: it may still run, and counts in full
                self._refuse(attempt, description["TrainingJobName"], description["FailureReason"])
                continue
            self._allowance.settle(description)
            outcome = collect_outcome(self.config, self.inputs.sweep_id, attempt.point, attempt.number, description)
            self.outcomes.append(outcome)
            self._ended.append(outcome)
            self._is_proven = self._is_proven or outcome.completed
            say_outcome(outcome)
            if outcome.may_pass and attempt.tries_left and self.given_up is None:
                self.waiting.appendleft(_Attempt(attempt.point, attempt.number + 1, attempt.tries_left - 1))
        self._give_up()


def job_limits(config: BenchmarkConfig) -> JobLimits:
    """How long a job may wait and run.

    A spot job may wait for capacity in between: then the platform's own limit is on running and waiting together.
    """
    training = config.training
    longest = training.spot.max_wait_seconds if training.spot is not None else training.max_runtime_seconds
    return JobLimits(config.sweep.queue_deadline_seconds, longest + _STOP_GRACE_SECONDS)


def submit_point(
    config: BenchmarkConfig, plan: SweepPlan, inputs: ResolvedInputs, point: PlannedPoint
) -> dict[str, Any] | None:
    """Start or adopt the first attempt at a point; returns the job's description, None where the sweep was stopped.

    Raises JobRefused.
    """
    request = build_request(config, point, inputs, 1)
    name, claimant = request["TrainingJobName"], uuid4().hex[:12]
    claim = claim_job(config.platform, inputs.sweep_id, name, claimant)
    if claim.stop_mark is not None:
        withdraw_claim(config.platform, inputs.sweep_id, name, claimant)
        return None
    try:
        return _submit(config, plan, _Attempt(point, 1, 0), request)
    except JobRefused:
        withdraw_claim(config.platform, inputs.sweep_id, name, claimant)
        raise


def _submit(config: BenchmarkConfig, plan: SweepPlan, attempt: _Attempt, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start or adopt the attempt's job; says its point's place among the points, whatever the attempt."""
    point = attempt.point
    again = f", attempt {attempt.number}" if attempt.number > 1 else ""
    place = f"{plan.points.index(point) + 1}/{len(plan.points)}"
    logger.info("job %s: %d x %s, repeat %d%s", place, point.nodes, config.training.instance_type, point.repeat, again)
    label = f"train-{point.nodes}n-r{point.repeat}" + (f"-a{attempt.number}" if attempt.number > 1 else "")
    return submit_training_job(config.platform, request, label)


def _may_wait_for_quota(config: BenchmarkConfig, error: JobRefused, attempt: _Attempt, others_run: bool) -> bool:
    """Whether a refusal is a matter of quota that more waiting may end; where no job of ours will, it waits here.

    As long as between two looks at a job, longer each time, up to a minute.
    """
    if not isinstance(error, QuotaReached):
        return False
    logger.warning("quota reached: %s", error)
    if attempt.quota_deadline is None or attempt.quota_pauses is None:  # counted from the first refusal
        attempt.quota_deadline = time.monotonic() + config.sweep.queue_deadline_seconds
        first_seconds = min(config.sweep.poll_interval_seconds, _LONGEST_QUOTA_PAUSE_SECONDS)
        attempt.quota_pauses = intervals(first_seconds, _LONGEST_QUOTA_PAUSE_SECONDS)
    if time.monotonic() > attempt.quota_deadline:
        return False
    if not others_run:
        Clock().sleep(next(attempt.quota_pauses))
    return True
