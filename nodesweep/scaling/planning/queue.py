"""Decide which attempt of a sweep to start, hold back, retry or refuse, and when the sweep is done.

SweepQueue is a state machine without a clock or a platform, so every decision can be tested without
Prefect or jobs. flows/stages/sweep.py carries out each `next_order` and reports the result back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.arms import Key
from nodesweep.scaling.instances.arms import arms_given_up, cells_out_of_memory
from nodesweep.scaling.instances.progress import (
    SweepProgress,
    contended_keys,
    key_of,
    keys_done,
    lacks_sound_runs,
    sweep_progress,
)
from nodesweep.scaling.job import JobSpec, JobStatus, Render, ResolvedInputs
from nodesweep.scaling.outcome.attainment import MOST_REPEATS, is_contention_steady
from nodesweep.scaling.outcome.observed import TIME_ALL_REDUCES
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.outcome.timed_passes import TIME_PASSES
from nodesweep.scaling.planning.budget import Allowance
from nodesweep.scaling.planning.fail_fast import (
    Candidate,
    code_digest,
    needs_smoke,
    next_to_start,
    reason_to_give_up,
)
from nodesweep.scaling.planning.fallbacks import deciding_key, selected_type, undecided_reason
from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.scaling.planning.workload import sized_steps


@dataclass(frozen=True)
class Attempt:
    """One attempt at a point; `tries_left` is the number of retries left to this run."""

    point: PlannedPoint
    number: int
    tries_left: int
    is_repeat: bool = False
    """True if the point has a completed run on contended nodes."""

    @property
    def key(self) -> names.JobKey:
        """The attempt's place in the sweep, which the job's name contains."""
        point = self.point
        return names.JobKey(point.arm.code, point.nodes, point.repeat, self.number)


@dataclass(frozen=True)
class Submit:
    """Start the attempt's job, or adopt the existing job of this name.

    `counts_others` is True if the sweep has a limit, toward which jobs claimed by other runs of the
    sweep also count.
    """

    attempt: Attempt
    spec: JobSpec
    counts_others: bool

    @property
    def job_name(self) -> str:
        """The job's name."""
        return self.spec.name


@dataclass(frozen=True)
class Refuse:
    """Drop the attempt for `reason`; `is_over_budget` is True if it is sweep.budget_usd."""

    attempt: Attempt
    job_name: str
    reason: str
    is_over_budget: bool = False


@dataclass(frozen=True)
class Wait:
    """Start nothing until a job of the sweep ends or, if none is running, until a pause is over."""


@dataclass(frozen=True)
class Done:
    """Nothing is running, and nothing is left to try."""


class SweepQueue:
    """The waiting attempts, the running jobs (`active`), and the `outcomes` of ended jobs.

    The life of a job: `next_order` returns Submit; `confirm` is called once the job is claimed, and
    can still refuse it or make it wait; `handle_refusal` follows if the platform refuses the job,
    otherwise `settle` once it has ended (`settle_earlier` if it ended in an earlier run).
    """

    def __init__(
        self, config: BenchmarkConfig, plan: SweepPlan, inputs: ResolvedInputs, render: Render
    ) -> None:
        self._config, self._inputs, self._render = config, inputs, render
        self.code_digest = code_digest(config.training, inputs)
        self.active: dict[str, Attempt] = {}
        self.outcomes: list[JobOutcome] = []
        self.given_up: str | None = None
        self.is_proven = not needs_smoke(config.sweep)
        """True once the code is known to reach a first step; until then, jobs run one at a time."""
        self.progress: SweepProgress | None = None
        """The sweep's latest progress; None for a design that requests all points at the start."""
        self.retained: tuple[Key, ...] = ()
        """Points that have jobs from earlier runs, but that the design no longer requests."""
        self.left_out: tuple[Key, ...] = ()
        """Points dropped from the queue because a lack of memory ruled them out."""
        self._is_over = self._is_stopped = self._is_reopened = False
        self._plan, self._points = plan, plan.points
        self._unqueued = list(plan.points)
        self._waiting: deque[Attempt] = deque()
        self._earlier: frozenset[str] = frozenset()
        self._earlier_keys: frozenset[names.JobKey | None] = frozenset()
        self._existing: frozenset[str] = frozenset()
        self._others: frozenset[str] = frozenset()
        self._never_sent: set[str] = set()
        self._repeats: Counter[Key] = Counter()
        self._quota_deadlines: dict[str, float] = {}
        self._ended: list[JobOutcome] = []
        self._allowance = Allowance(config, plan.usd_per_hour_by_code, plan.spent_usd)
        self._enqueue_due()
        self._has_limit = (
            config.sweep.budget_usd is not None or config.sweep.max_retries is not None
        )

    @property
    def known_jobs(self) -> list[str]:
        """Every job of the sweep that this run knows of, even if another run started it."""
        had_outcome = {outcome.job_name for outcome in self.outcomes} - self._never_sent
        return sorted({*self._earlier, *self._others, *self.active, *had_outcome})

    @property
    def selected_type(self) -> str | None:
        """The type that the first job got; None without fallbacks, or before it got a type."""
        return selected_type(self._config, self.outcomes)

    @property
    def needs_earlier_statuses(self) -> bool:
        """True if count_earlier() needs to know which of the sweep's jobs exist on the platform.

        A budget counts their cost, and a design may no longer request them.
        """
        sweep = self._config.sweep
        return sweep.budget_usd is not None or sweep.rules.decides_as_it_goes

    @property
    def is_awaiting_first_step(self) -> bool:
        """True if jobs wait until a running one has shown that the code reaches its first step."""
        return not self.is_proven and bool(self._waiting)

    def count_earlier(self, job_names: Iterable[str], statuses: Sequence[JobStatus]) -> None:
        """Count the sweep's existing jobs, and queue them first, since they cost nothing more.

        Args:
            job_names: The sweep's existing or claimed jobs.
            statuses: The jobs' statuses if `needs_earlier_statuses`. A claimed job without a status
                may never have been sent; it starts like a new job, within the budget.
        """
        self._earlier = frozenset(job_names)
        self._existing = frozenset(job.name for job in statuses)
        if self._config.sweep.budget_usd is not None:
            self._earlier = self._existing
        self._earlier_keys = frozenset(map(names.parse_job_name, self._earlier))
        self._waiting = deque(sorted(self._waiting, key=self._is_new))
        for name in self._earlier:
            self._allowance.count(name)
        for job in statuses:
            self._allowance.settle(job)

    def next_order(self) -> Submit | Refuse | Wait | Done:
        """Return the next action.

        The attempt of a Submit leaves the queue; `confirm` can put it back. An attempt is refused
        if the program cannot run on its arm, or if it needs a number of steps or an instance type
        that is unknown.
        """
        self._enqueue_due()
        if not self._waiting:
            return Wait() if self.active else Done()
        if len(self.active) >= self._config.sweep.max_parallel_jobs:
            return Wait()
        candidates = [
            Candidate(attempt.point.nodes, not self._is_new(attempt)) for attempt in self._waiting
        ]
        index = next_to_start(candidates, len(self.active), self.is_proven)
        if index is None:
            return Wait()
        attempt = self._waiting[index]
        del self._waiting[index]
        spec = self._spec(attempt)
        name = spec.name
        undecided = undecided_reason(self._config, self.outcomes)
        if undecided is not None and attempt.point.key != deciding_key(self._config):
            self._never_sent.add(name)
            return Refuse(attempt, name, undecided)
        failing = arms_given_up(self._config, self._ended)
        if (reason := failing.get(attempt.point.arm)) and self._is_new(attempt):
            self._never_sent.add(name)
            return self._refuse(attempt, name, f"not run: {reason}")
        return Submit(attempt, spec, self._has_limit and name not in self._earlier)

    def confirm(self, order: Submit, claimed: frozenset[str]) -> Submit | Wait | Refuse:
        """Apply the sweep's limits to a job that has been claimed.

        A confirmed job counts as active before it is sent, so that it is stopped with the others
        even if something fails right after the platform has accepted it. `claimed` names all of the
        sweep's claimed jobs.
        """
        name = order.job_name
        if name not in self._earlier:
            self._allowance.forget(name)
            self._count_others(claimed - {name})
            if self.active and self._allowance.budget_problem(name):
                # this job may fit later, since the running ones may cost less than their bound
                self._waiting.appendleft(order.attempt)
                return Wait()
            retries = self._allowance.retry_problem(name)
            budget = self._allowance.budget_problem(name)
            if order.attempt.is_repeat:  # its point already has a time
                bound = self._allowance.bound_problem(name)
                if reason := retries or budget or bound:
                    return self._refuse(order.attempt, name, reason)
            elif reason := retries or budget:
                self._never_sent.add(name)
                self._is_over = self._is_over or retries is None
                return self._refuse(order.attempt, name, reason, is_over_budget=retries is None)
            self._allowance.count(name)
        self.active[name] = order.attempt
        return order

    def handle_refusal(
        self, order: Submit, reason: str, quota_now_seconds: float | None = None
    ) -> Wait | Refuse:
        """Handle a job that the platform refused.

        Quota may become available, so the attempt waits for it for up to
        sweep.queue_deadline_seconds after its first refusal.

        Args:
            order: The Submit that was refused.
            reason: The platform's reason.
            quota_now_seconds: The time on any monotonic clock if quota was the reason, otherwise
                None.
        """
        name = order.job_name
        del self.active[name]
        if name not in self._earlier:
            self._allowance.forget(name)
        if quota_now_seconds is not None:
            longest = self._config.sweep.queue_deadline_seconds
            if quota_now_seconds <= self._quota_deadlines.setdefault(
                name, quota_now_seconds + longest
            ):
                self._waiting.appendleft(order.attempt)
                return Wait()
        self._never_sent.add(name)
        return self._refuse(order.attempt, name, reason)

    def _refuse(
        self, attempt: Attempt, name: str, reason: str, is_over_budget: bool = False
    ) -> Refuse:
        """Refuse the attempt; if it is a repeat, request no more repeats of its point."""
        if attempt.is_repeat:
            self._repeats[attempt.point.key] = MOST_REPEATS
        return Refuse(attempt, name, reason, is_over_budget)

    def ended_in_earlier_run(self, order: Submit, job: JobStatus) -> bool:
        """Return True if the job ended in an earlier run of this sweep.

        A job that this run submitted is watched like any other, even if it has already ended.
        """
        return job.has_ended and order.job_name in self._earlier

    def settle_earlier(self, job: JobStatus, outcome: JobOutcome) -> None:
        """Handle a job that ended in an earlier run. If it completed, it is the point's result.

        Otherwise its point gets a further attempt, unless the design no longer requests it. If the
        earlier run has already made that attempt, it is settled next.
        """
        attempt = self.active.pop(outcome.job_name)
        key = attempt.point.key
        is_done = key in keys_done(self._config, self.outcomes)
        self._repeats[key] += is_done
        self._count_ended(job, outcome)
        further = Attempt(attempt.point, attempt.number + 1, attempt.tries_left)
        if key in self.retained:
            pass
        elif is_done or outcome.completed:
            if not self._is_new(further) and self._job_name(further) in self._earlier:
                self._waiting.appendleft(further)
        else:
            (self._waiting.append if self._is_new(further) else self._waiting.appendleft)(further)
        self._leave_out_lost()

    def settle(self, job: JobStatus, outcome: JobOutcome) -> None:
        """Handle a job of this run that has ended, and queue its retry, if any, first."""
        attempt = self.active.pop(outcome.job_name)
        self._count_ended(job, outcome)
        self._ended.append(outcome)
        if outcome.failure_is_transient and attempt.tries_left and self.given_up is None:
            self._waiting.appendleft(
                replace(attempt, number=attempt.number + 1, tries_left=attempt.tries_left - 1)
            )
        self._leave_out_lost()

    def _count_ended(self, job: JobStatus, outcome: JobOutcome) -> None:
        """Record an ended job's outcome, and price all jobs by the type that they run on."""
        self.outcomes.append(outcome)
        priced = self._plan.on_type(self.selected_type)
        self._allowance.usd_per_hour = priced.usd_per_hour_by_code
        self._allowance.settle(job)
        self.is_proven = self.is_proven or outcome.completed

    def unwatch(self, job_name: str) -> Attempt:
        """Stop watching a job that may still be running, and return its attempt.

        The budget still counts the job at its maximum cost.
        """
        return self.active.pop(job_name)

    def stop(self) -> int:
        """Stop the sweep, and return the number of dropped attempts.

        The attempt of the last Submit and all waiting ones are dropped.
        """
        left = len(self._waiting) + 1
        self._is_over = self._is_stopped = True
        self._waiting.clear()
        return left

    def give_up(self) -> tuple[str, int] | None:
        """Give up if the program cannot run; return (reason, number of dropped attempts), or None.

        This happens only once; the caller then stops the running jobs.
        """
        reason = self._reason_to_give_up()
        self._enqueue_due()
        if reason is None or self.given_up is not None or not (self._waiting or self.active):
            return None
        self.given_up, left = reason, len(self._waiting)
        self._is_over = True
        self._waiting.clear()
        return reason, left

    def _reason_to_give_up(self) -> str | None:
        """Return the reason to give up, or None.

        With several arms, there is a reason only if the program can run on none of them.
        """
        if self._config.sweep.arm_count == 1:
            return reason_to_give_up(self._ended)
        failing = arms_given_up(self._config, self._ended)
        is_everywhere = len(failing) == self._config.sweep.arm_count
        return next(iter(failing.values())) if is_everywhere else None

    def _leave_out_lost(self) -> None:
        """Drop waiting points that a lack of memory rules out, except those with existing jobs."""
        if lost := cells_out_of_memory(self._config, self.outcomes):
            waiting, self._waiting = self._waiting, deque()
            for attempt in waiting:
                key = attempt.point.key
                if self._is_new(attempt) and key.cell in lost:
                    self.left_out += (key,)
                else:
                    self._waiting.append(attempt)

    def _enqueue_due(self) -> None:
        """Queue the points that the design requests, once all previous ones have ended.

        A full sweep queues all points at once. Contended points run again before further ones are
        queued. No new point is queued once the sweep has been stopped or abandoned, or one of its
        limits has refused an attempt.
        """
        if self._waiting or self.active:
            return
        if not self._is_over:
            self._enqueue_design()
        if not self._waiting and not self._is_stopped:
            self._enqueue_paid_runs()
        if not self._waiting and not self._is_over:
            self._reopen()

    def _enqueue_design(self) -> None:
        self.progress = sweep_progress(self._config, self.outcomes)
        asked = None if self.progress is None else set(self.progress.next_keys)
        deciding = deciding_key(self._config)
        if deciding is not None and any(point.key == deciding for point in self._unqueued):
            asked = {deciding}  # alone: the other points take their steps or their type from it
        now = [point for point in self._unqueued if asked is None or point.key in asked]
        tries = self._config.sweep.max_attempts - 1
        attempts = sorted((Attempt(point, 1, tries) for point in now), key=self._is_new)
        if self._ended or any(map(self._is_new, attempts)):
            self._enqueue_contended()
        if not self._waiting:
            self._unqueued = [point for point in self._unqueued if point not in now]
            self._waiting = deque(attempts)

    def _enqueue_contended(self) -> None:
        """Queue every point whose completed runs were all contended.

        A point is queued at most MOST_REPEATS times, and not after two of its runs in this process
        were equally contended.
        """
        points = contended_keys(self._config, self.outcomes)
        tries = self._config.sweep.max_attempts - 1
        for point in self._points:
            key = point.key
            ended = [each for each in self._ended if key_of(self._config, each) == key]
            if is_contention_steady(each for each in ended if each.completed):
                continue
            if key in points and key not in self.retained and self._repeats[key] < MOST_REPEATS:
                self._repeats[key] += 1
                self._waiting.append(Attempt(point, points[key] + 1, tries, is_repeat=True))

    def _reopen(self) -> None:
        """Repeat contended points once if an earlier run left the sweep without a recommendation.

        A sweep with a recommendation starts no job.
        """
        if self._ended or self._is_reopened:
            return
        self._is_reopened = True
        if lacks_sound_runs(self._config, self.outcomes):
            self._repeats.clear()
            self._enqueue_contended()

    def _enqueue_paid_runs(self) -> None:
        """Queue existing jobs that the design no longer requests, so that the report includes them.

        The jobs are already paid for, although the design has changed its choice since. Their
        points are not retried.
        """
        paid = []
        for name in sorted(self._existing):
            key = names.parse_job_name(name)
            for point in self._unqueued:
                attempt = Attempt(point, 0 if key is None else key.attempt, 0)
                if attempt.key == key and name == self._job_name(attempt):
                    paid.append(attempt)
        points = [attempt.point for attempt in paid]
        self._unqueued = [point for point in self._unqueued if point not in points]
        self.retained += tuple(dict.fromkeys(point.key for point in points))
        self._waiting = deque(paid)

    def _job_name(self, attempt: Attempt) -> str:
        return self._spec(attempt).name

    def _spec(self, attempt: Attempt) -> JobSpec:
        """Return the attempt's job, without timed parts if an older version began it so."""
        build = partial(
            build_spec,
            self._config,
            attempt.point,
            self._inputs,
            self._render,
            attempt.number,
            sized_steps(self._config, self.outcomes),
            self.selected_type,
        )
        spec = build()
        times_parts = not {TIME_ALL_REDUCES, TIME_PASSES}.isdisjoint(spec.variables)
        if times_parts and spec.name not in self._earlier:
            older = build(times_parts=False)
            return older if older.name in self._earlier else spec
        return spec

    def _count_others(self, claimed: frozenset[str]) -> None:
        """Count the jobs that other runs of this sweep have claimed, which share the budget."""
        self._others |= claimed - self._earlier - self._allowance.node_seconds.keys()
        for name in claimed - self._allowance.node_seconds.keys():
            self._allowance.count(name)

    def _is_new(self, attempt: Attempt) -> bool:
        """Return True if no earlier run has a job for the attempt, according to the job names."""
        return attempt.key not in self._earlier_keys
