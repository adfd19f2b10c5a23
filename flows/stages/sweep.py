"""Run a sweep: one training job per point, in the planned order, continuing after failures.

nodesweep/scaling/planning/queue.py makes the decisions; this file carries them out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError

from nodesweep.configs.models import SweepConfig, TrainingConfig
from nodesweep.errors import JobRefused, QuotaReached, best_effort, was_refused
from nodesweep.events import event_extra
from nodesweep.flows.stages.ending import end_sweep
from nodesweep.flows.stages.outcomes import (
    PlannedSweep,
    collect_outcome,
    log_outcome,
    outcome_event,
    refused_outcome,
    with_warm_pool,
)
from nodesweep.polling import Clock, intervals, utc_now
from nodesweep.scaling import names
from nodesweep.scaling.design.base import CountAnswer
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.formats import join_words, pluralize
from nodesweep.scaling.instances.progress import SweepProgress
from nodesweep.scaling.job import JobSpec, JobStatus
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import PlannedPoint
from nodesweep.scaling.planning.queue import Attempt, Done, Refuse, Submit, SweepQueue, Wait
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.tasks.calls import (
    announce_budget,
    describe_training_jobs,
    list_training_jobs,
    stop_training_jobs,
)
from nodesweep.tasks.jobs.quota import NodeSlots
from nodesweep.tasks.jobs.source import is_code_proven
from nodesweep.tasks.jobs.training_jobs import (
    JobLimits,
    submit_training_job,
    watch_training_jobs,
)
from nodesweep.tasks.sweeps.board import SweepBoard
from nodesweep.tasks.sweeps.claims import claim_job, withdraw_claim
from nodesweep.tasks.sweeps.owner import SweepOwner
from nodesweep.tasks.sweeps.stopping import release_pools_now

logger = logging.getLogger("nodesweep.sweep")
_STOP_GRACE_SECONDS = 600  # beyond max runtime: upload of the output, and slack for the platform
_LONGEST_QUOTA_PAUSE_SECONDS = 60.0


@dataclass(frozen=True)
class SweepRun:
    """One outcome per attempt, and the reason if the sweep was abandoned."""

    outcomes: list[JobOutcome]
    given_up: str | None


def log_plan(planned: PlannedSweep) -> None:
    """Log what will run, on one line; views also receive the points and their cost bound."""
    config, plan, sweep = planned.config, planned.plan, planned.inputs.sweep_id
    most = config.sweep.most_jobs
    is_open = config.sweep.rules.decides_as_it_goes  # each point is reported once it is decided
    points = [] if is_open else _facts(planned, plan.points)
    logger.info(
        "sweep %s: %s",
        sweep,
        design_of(config.sweep).jobs_text.format(most),
        extra=event_extra(
            "sweep-planned",
            stage="sweep",
            sweep=sweep,
            design=config.sweep.design,
            most_jobs=most,
            points=points,
            max_parallel_jobs=config.sweep.max_parallel_jobs,
            usd_per_hour=plan.usd_per_hour,
            usd_per_hour_by_type=dict(plan.usd_per_hour_by_type),
            cost_bound_usd=plan.cost_bound_usd,
            on_cancel=config.sweep.on_cancel,
        ),
    )


def _facts(planned: PlannedSweep, points: Sequence[PlannedPoint]) -> list[dict[str, Any]]:
    """Return the facts a view needs about points; with several arms, also the arm and its price."""
    facts: list[dict[str, Any]] = [
        {
            "nodes": point.nodes,
            "repeat": point.repeat,
            "batch": point.global_batch_size,
            "kind": planned.config.kind_of_job(point.repeat),
        }
        for point in points
    ]
    for fact, point in zip(facts, points, strict=True):
        if (own := planned.plan.by_arm.get(point.arm)) is not None:
            fact |= {"arm": point.arm.code, "place": point.key.cell.text}
            fact["usd_per_hour"] = own.usd_per_hour
    return facts


def run_sweep(
    planned: PlannedSweep, owner: SweepOwner, earlier_mark: str | None = None
) -> SweepRun:
    """Run all planned points; on an error, jobs end as described in flows/stages/ending.py.

    A sweep that is stopped while it runs (`nodesweep stop`) submits no more jobs, and its remaining
    points have no outcome.

    Args:
        planned: The sweep.
        owner: The sweep's heartbeat.
        earlier_mark: Stop mark of an earlier run, which does not stop this one.
    """
    sweep, stopped = _Sweep(planned, earlier_mark), False
    backend, config, sweep_id = planned.backend, planned.config, planned.inputs.sweep_id

    def release_pools() -> None:
        if config.training.keep_alive_seconds:
            release_pools_now(backend, sweep_id, sweep.queue.known_jobs)

    try:
        sweep.run()
        release_pools()
    except BaseException as error:
        try:
            active, on_cancel = list(sweep.queue.active), config.sweep.on_cancel
            stopped = end_sweep(backend, on_cancel, sweep_id, active, error, owner)
        finally:
            release_pools()  # those of ended jobs, even if others keep running
        raise
    finally:
        sweep.slots.release_all()
        sweep.board.end(stopped)
    outcomes = sweep.queue.outcomes
    if config.training.keep_alive_seconds:
        outcomes = [with_warm_pool(backend, outcome) for outcome in outcomes]
    outcomes = sorted(outcomes, key=lambda each: names.parse_job_name(each.job_name) or ())
    return SweepRun(outcomes, sweep.queue.given_up)


class _Sweep:
    """Carries out the decisions of the queue of attempts, and reports the results back to it."""

    def __init__(self, planned: PlannedSweep, earlier_mark: str | None) -> None:
        config, plan, inputs = planned.config, planned.plan, planned.inputs
        self.planned, self.config, self.plan, self.inputs = planned, config, plan, inputs
        self.queue = SweepQueue(config, plan, inputs, planned.render)
        self.slots = NodeSlots(config.sweep.concurrency_limit)
        self._store = planned.backend.store
        self._earlier_mark, self._claimant = earlier_mark, uuid4().hex[:12]
        longest = config.training.longest_seconds
        self.board = SweepBoard(inputs.sweep_id, plan, config.sweep, timeout_seconds=longest)
        self._followed_until = utc_now()
        self._is_budget_announced = False
        self._quota_pauses: dict[str, Iterator[float]] = {}
        self._logged_progress: SweepProgress | None = None
        self._logged_answers: list[CountAnswer] = []
        self._logged_kept = self._logged_left_out = 0
        self._logged_type: str | None = None

    def run(self) -> None:
        """Run until every point has an outcome, or no point can be tried."""
        self._count_earlier()
        queue = self.queue
        queue.is_proven = queue.is_proven or is_code_proven(self._store, queue.code_digest)
        while not isinstance(self._fill(), Done):
            self.board.show(queue.outcomes, queue.active)
            if queue.active:
                self._wait_and_collect()
        self.board.show(queue.outcomes, last=True)

    def _count_earlier(self) -> None:
        earlier = list_training_jobs(self.planned.backend, self.inputs.sweep_id)
        statuses: list[JobStatus] = []
        if earlier and self.queue.needs_earlier_statuses:
            statuses = describe_training_jobs(self.planned.backend, sorted(earlier))
        self.queue.count_earlier(earlier, statuses)

    def _fill(self) -> Wait | Done:
        """Start jobs until the queue asks to wait, or is done."""
        while True:
            order = self.queue.next_order()
            self._log_decision()
            if isinstance(order, Submit):
                result = self._claim_and_submit(order)
                if isinstance(result, Refuse):
                    self._record_refusal(result)
                elif result is not None:
                    return result
            elif isinstance(order, Refuse):
                self._record_refusal(order)
            else:
                return order

    def _log_decision(self) -> None:
        """Log new results of a sequential or probe sweep, and the reason for its next jobs."""
        self._log_kept()
        self._log_left_out()
        self._log_selected_type()
        progress = self.queue.progress
        if progress is None or progress == self._logged_progress:
            return
        self._logged_progress = progress
        for each in progress.answers:
            if each.looks and each not in self._logged_answers and each.text not in progress.reason:
                self._logged_answers.append(each)
                extra = event_extra(
                    "count-answered", stage="sweep", count=each.nodes, answer=each.answer
                )
                logger.info("%s", each.text, extra=extra)
        next_ = set(progress.next_keys)
        points = [point for point in self.plan.points if point.key in next_]
        logger.info(
            "%s: %s",
            f"{pluralize(len(points), 'job')} next" if points else "no further job",
            progress.reason,
            extra=event_extra(
                "sweep-decided",
                stage="sweep",
                points=_facts(self.planned, points),
                later=self._later_facts(progress),
                reason=progress.reason,
                answers=[
                    {
                        "nodes": each.nodes,
                        "answer": each.answer,
                        "brief": each.brief,
                        "text": each.text,
                    }
                    for each in progress.answers
                ],
            ),
        )

    def _later_facts(self, progress: SweepProgress) -> list[dict[str, Any]]:
        """Return the facts of probes that may follow if no more arms are dropped."""
        keys = set(progress.later)
        points = [point for point in self.plan.points if point.key in keys]
        facts = _facts(self.planned, points)
        return [{**fact, "may_be_dropped": True} for fact in facts]

    def _log_kept(self) -> None:
        new, self._logged_kept = self.queue.retained[self._logged_kept :], len(self.queue.retained)
        points = [point for point in self.plan.points if point.key in new]
        if points:
            logger.info(
                "no longer part of the design, but run earlier and kept in the report: %s",
                join_words(point.key.text for point in points),
                extra=event_extra("sweep-kept", stage="sweep", points=_facts(self.planned, points)),
            )

    def _log_selected_type(self) -> None:
        selected = self.queue.selected_type
        if selected is not None and self._logged_type is None:
            logger.info("the first job got %s, so all others use it, too", selected)
        self._logged_type = selected

    def _log_left_out(self) -> None:
        new = self.queue.left_out[self._logged_left_out :]
        self._logged_left_out += len(new)
        if new:
            points = [point for point in self.plan.points if point.key in new]
            logger.warning(
                "not run, since a job of the same type ran out of memory on at least as many nodes:"
                " %s",
                join_words(key.text for key in new),
                extra=event_extra(
                    "points-left-out",
                    stage="sweep",
                    points=_facts(self.planned, points),
                ),
            )

    def _claim_and_submit(self, order: Submit) -> Wait | Refuse | None:
        """Claim the job and submit it.

        Return the queue's next order, or None to ask the queue for it.
        """
        name, queue = order.job_name, self.queue
        claim = claim_job(
            self._store, self.inputs.sweep_id, name, self._claimant, order.counts_others
        )
        if claim.stop_mark not in (None, self._earlier_mark):
            self._withdraw(name)
            logger.warning(
                "sweep %s was stopped; jobs not run: %d", self.inputs.sweep_id, queue.stop()
            )
            return None
        decision = queue.confirm(order, claim.jobs)
        if not isinstance(decision, Submit):
            self._withdraw(name)
            return decision
        try:
            self.slots.take(name, order.attempt.point.nodes)
            job = _submit(self.planned, order.attempt, order.spec)
        except JobRefused as error:
            self.slots.release(name)
            self._withdraw(name)
            return self._handle_refusal(order, error)
        except ClientError as error:
            # e.g. AccessDenied: the job does not exist
            if was_refused(error, self.planned.backend.sending_calls):
                queue.unwatch(name)
                with best_effort(f"the lease of {name} can't be released"):
                    self._withdraw(name)
            raise
        if queue.ended_in_earlier_run(order, job):
            self.slots.release(name)
            outcome = self._collect(order.attempt, job)
            extra = outcome_event(outcome)
            logger.info("%s ended during an earlier run: %s", name, outcome.status, extra=extra)
            queue.settle_earlier(job, outcome)
        return None

    def _handle_refusal(self, order: Submit, error: JobRefused) -> Wait | Refuse:
        """Report a refusal to the queue, and wait if only time can free quota.

        A lack of quota may be temporary. If no job of this sweep can free quota, sleep for a
        poll interval, increasing up to a minute.
        """
        is_quota = isinstance(error, QuotaReached)
        if is_quota:
            logger.warning("quota reached: %s", error)
        decision = self.queue.handle_refusal(
            order, str(error), time.monotonic() if is_quota else None
        )
        if isinstance(decision, Wait):
            first_seconds = min(
                self.config.sweep.poll_interval_seconds, _LONGEST_QUOTA_PAUSE_SECONDS
            )
            pauses = self._quota_pauses.setdefault(
                order.job_name, intervals(first_seconds, _LONGEST_QUOTA_PAUSE_SECONDS)
            )
            if not self.queue.active:
                Clock().sleep(next(pauses))
        return decision

    def _record_refusal(self, order: Refuse) -> None:
        """Record a refused attempt as failed, unless it would only have repeated a contended run.

        A Prefect event is emitted for the first attempt that is refused because of the budget.
        """
        if order.attempt.is_repeat:
            logger.info("%s was not run: %s", order.job_name, order.reason)
            return
        if order.is_over_budget and not self._is_budget_announced:
            announce_budget(self.config.name, order.reason, self.inputs.sweep_id)
            self._is_budget_announced = True
        outcome = refused_outcome(
            self.planned, order.job_name, order.attempt.point, order.attempt.number, order.reason
        )
        self.queue.outcomes.append(outcome)
        log_outcome(outcome)

    def _withdraw(self, name: str) -> None:
        withdraw_claim(self._store, self.inputs.sweep_id, name, self._claimant)

    def _collect(self, attempt: Attempt, job: JobStatus) -> JobOutcome:
        return collect_outcome(self.planned, attempt.point, attempt.number, job)

    def _wait_and_collect(self) -> None:
        """Wait for a job to end, or for an awaited first step, and collect ended jobs."""
        queue = self.queue
        followed = self._followed_until
        ended = watch_training_jobs(
            self.planned.backend,
            self.inputs.sweep_id,
            list(queue.active),
            self.config.sweep.poll_interval_seconds,
            job_limits(self.config.training, self.config.sweep),
            followed,
            self._earlier_mark,
            self.config.training.metric_definitions if queue.is_awaiting_first_step else None,
            self.board.show_running,
        )
        self._followed_until = utc_now()
        if not ended:
            logger.info("the code has reached its first step; the other points can start")
            queue.is_proven = True
        for job in ended:
            name = job.name
            self.slots.release(name)
            if not job.has_ended:
                lost = replace(
                    queue.unwatch(name), is_repeat=False
                )  # shown, because it may still be running
                self._record_refusal(Refuse(lost, name, job.reason or job.phase))
                continue
            outcome = self._collect(queue.active[name], job)
            queue.settle(job, outcome)
            log_outcome(outcome)
        self._give_up()

    def _give_up(self) -> None:
        """Stop running jobs and start no more if the program cannot run; outcomes are kept."""
        given_up = self.queue.give_up()
        if given_up is None:
            return
        reason, left = given_up
        logger.error(
            "sweep %s ends early: %s (jobs not started: %d; jobs stopped: %d)",
            self.inputs.sweep_id, reason, left, len(self.queue.active),
        )  # fmt: skip
        try:
            stop_training_jobs(self.planned.backend, list(self.queue.active))
        except JobRefused as error:
            logger.warning("%s", error)


def job_limits(training: TrainingConfig, sweep: SweepConfig) -> JobLimits:
    """Return the limits on how long a job may wait and run.

    A spot job may wait for capacity in between; the platform limits its running and waiting time
    together.
    """
    run_seconds = training.longest_seconds + _STOP_GRACE_SECONDS
    return JobLimits(sweep.queue_deadline_seconds, run_seconds)


def submit_point(
    planned: PlannedSweep, point: PlannedPoint, steps: int | None = None
) -> JobStatus | None:
    """Start or adopt the first attempt at a point.

    Args:
        planned: The sweep.
        point: The point to run.
        steps: Number of steps to train for, if the sweep has determined it.

    Returns:
        The job's status, or None if the sweep was stopped.

    Raises:
        JobRefused: The backend did not accept the job.
    """
    backend, inputs = planned.backend, planned.inputs
    spec = build_spec(planned.config, point, inputs, planned.render, 1, steps)
    name, claimant, store = spec.name, uuid4().hex[:12], backend.store
    claim = claim_job(store, inputs.sweep_id, name, claimant)
    if claim.stop_mark is not None:
        withdraw_claim(store, inputs.sweep_id, name, claimant)
        return None
    try:
        return _submit(planned, Attempt(point, 1, 0), spec)
    except JobRefused:
        withdraw_claim(store, inputs.sweep_id, name, claimant)
        raise


def _submit(planned: PlannedSweep, attempt: Attempt, spec: JobSpec) -> JobStatus:
    """Start or adopt the attempt's job, and log its point's position among all points."""
    point, plan, section = attempt.point, planned.plan, planned.config.sweep
    again = f", attempt {attempt.number}" if attempt.number > 1 else ""
    again += " after a contended run" if attempt.is_repeat else ""
    position = f"{plan.points.index(point) + 1}/{len(plan.points)}"
    if section.rules.decides_as_it_goes:
        position = f"of at most {section.most_jobs}"
    logger.info(
        "job %s: %s, repeat %d%s",
        position,
        point.key.cell.text,
        point.repeat,
        again,
        extra=event_extra("job-submitted", job=spec.name),
    )
    return submit_training_job(planned.backend, spec)
