"""The invariants of a chaos run, checked in the platform's ledger, the uploads and the report."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.chaos.proxy import Call
from benchmarks.chaos.run import Evidence, quota_of
from benchmarks.chaos.world import (
    NODE_COUNTS,
    PARALLEL_JOBS,
    PROCESSING_USD_PER_HOUR,
    REPEATS,
    SPARK_NODES,
)
from nodesweep.scaling import names

CONTENT_ADDRESSED = ("PUT datasets", "PUT contexts", "PUT code")
"""Uploads whose keys derive from their content; a second upload is never needed."""
_ENDING_KINDS = {"sigterm", "sigint", "sigint_then_sigterm", "stop", "detach_sigterm"}
"""Requests to end the sweep that are carried out in full: none of its jobs keeps running."""
_STOPPING_KINDS = {*_ENDING_KINDS, "sigint_twice", "outage_then_sigterm"}
"""Requests to end the sweep: jobs are stopped (sweep.on_cancel), and points retried."""
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-6, 0.005  # the platform's times are in milliseconds
_VOLATILE = {"sweep_id", "generated_at", "config", "provenance"}
_VOLATILE_OF_POINT = {"job_name", "attempt", "created_at", "output_uri"}
_COUNTS_STOPPED_ATTEMPTS = {"costs", "caveats"}
_OF_WALL_TIME = "Order and node count are confounded"
"""Start of a caveat on when jobs were sent, which depends on the machine's load."""
_STOPPED_IN_HEADLINE = re.compile(r"; \d+ of \d+ jobs did not complete")


def broken_invariants(evidence: Evidence, undisturbed: Mapping[str, Any] | None) -> list[str]:
    """Return the broken invariants as text.

    Args:
        evidence: The run.
        undisturbed: The report that this run's must equal.
    """
    if evidence.tries[-1].exit_code != 0:
        last = evidence.tries[-1]
        state = "hung" if last.exit_code is None else f"ended with exit code {last.exit_code}"
        return [
            f"not done after {len(evidence.tries)} tries: the last one {state}: {last.last_words}",
            *_all(evidence),
        ]
    return [*_all(evidence), *_report_problems(evidence, undisturbed)]


def _all(evidence: Evidence) -> Iterator[str]:
    yield from _job_problems(evidence)
    yield from _validation_problems(evidence)
    yield from _attempt_problems(evidence)
    yield from _ending_problems(evidence)
    yield from _load_problems(evidence)
    yield from uploads_twice(evidence.calls)


def _job_problems(evidence: Evidence) -> Iterator[str]:
    """Yield problems unless each point has one completed job, and no other or unfinished one."""
    completed: Counter[tuple[int, int]] = Counter()
    for job in evidence.jobs:
        name, status = job["TrainingJobName"], job["TrainingJobStatus"]
        place = names.parse_job_name(name)
        if place is None or names.sweep_of_job(name) != evidence.sweep:
            yield f"{name} does not belong to the sweep {evidence.sweep}"
        elif status == "Completed":
            completed[place.nodes, place.repeat] += 1
        if status in ("InProgress", "Stopping"):
            yield f"{name} is still {status}"
    for nodes in NODE_COUNTS:
        for repeat in range(1, REPEATS + 1):
            count = completed.pop((nodes, repeat), 0)
            if count != 1:
                yield f"{nodes} nodes, repeat {repeat}: {count} completed jobs"
    for nodes, repeat in completed:
        yield f"{nodes} nodes, repeat {repeat} was never planned"


def _validation_problems(evidence: Evidence) -> Iterator[str]:
    """Yield problems unless a Spark run has one completed Processing job, whatever struck it.

    Sweeps that were stopped are exempt. No job may be unfinished or have failed by itself, and the
    report must include all billed jobs.
    """
    is_asked_for = any(
        done.struck and (done.disturbance or "").split()[0] in _STOPPING_KINDS
        for done in evidence.tries
    )
    injected = {rule["fault"] for rule in evidence.plan.api_faults if rule.get("jobs")}
    completed: list[str] = []
    for job in evidence.processing_jobs:
        name, status = job["ProcessingJobName"], job["ProcessingJobStatus"]
        sweep = names.sweep_of_validation_job(name)
        if status in ("InProgress", "Stopping"):
            yield f"{name} is still {status}"
        elif status == "Stopped" and not is_asked_for:
            yield f"{name} was stopped, but nobody requested it"
        elif status == "Failed" and not injected & {"capacity_error", "internal_error"}:
            yield f"{name} failed: {job.get('FailureReason')}"
        if sweep != evidence.sweep and sweep not in evidence.stopped_sweeps:
            yield f"{name} belongs to a second sweep, but nobody had stopped the first one"
        if status == "Completed" and sweep == evidence.sweep:
            completed.append(name)
    if len(completed) != evidence.plan.on_spark:
        yield f"{len(completed)} completed Processing jobs: {completed}"
    if completed and evidence.report is not None:
        yield from _cost_problems(evidence, completed)


def _cost_problems(evidence: Evidence, completed: Sequence[str]) -> Iterator[str]:
    """Yield a problem if the report lacks the completed validation job or an attempt's cost."""
    recorded = evidence.report["provenance"]["dataset_validation"] if evidence.report else {}
    if recorded["job"] not in completed:
        yield f"the report's validation is {recorded['job']}, but {completed} completed"
    billed = {
        job["ProcessingJobName"]: (job["ProcessingEndTime"] - started).total_seconds()
        for job in evidence.processing_jobs
        if (started := job.get("ProcessingStartTime")) is not None
        and names.sweep_of_validation_job(job["ProcessingJobName"]) == evidence.sweep
    }
    own = billed[recorded["job"]]
    if recorded["usd"] is None or not math.isclose(recorded["billed_seconds"], own, abs_tol=0.01):
        yield f"the report's validation was billed {recorded['billed_seconds']} s, but took {own} s"
        return
    wanted = sum(billed.values()) * PROCESSING_USD_PER_HOUR * SPARK_NODES / 3600
    if not math.isclose(recorded["usd"], wanted, rel_tol=_RELATIVE_TOLERANCE, abs_tol=1e-4):
        yield f"the report's validation cost {recorded['usd']} USD, but all its jobs cost {wanted}"


def _attempt_problems(evidence: Evidence) -> Iterator[str]:
    """Yield problems unless every incomplete job was stopped on request; a crash costs none."""
    may_stop = any(
        done.struck and (done.disturbance or "").split()[0] in _STOPPING_KINDS
        for done in evidence.tries
    )
    for job in evidence.jobs:
        name, status = job["TrainingJobName"], job["TrainingJobStatus"]
        if status == "Stopped" and not may_stop:
            yield f"{name} was stopped, but nobody requested it"
        elif status == "Failed":
            yield f"{name} failed: {job.get('FailureReason')}"
    accepted = sum(
        call.label == "CreateTrainingJob" and call.status == 200 for call in evidence.calls
    )
    if accepted > len(evidence.jobs):
        yield f"{accepted} jobs were accepted, but {len(evidence.jobs)} are listed"


def _ending_problems(evidence: Evidence) -> Iterator[str]:
    """Yield problems unless requested ends left nothing running, and the last one no warm pool."""
    for number, done in enumerate(evidence.tries, start=1):
        kind = (done.disturbance or "none").split()[0]
        ended = done.exit_code == 1 or (kind == "stop" and done.exit_code is not None)
        if done.struck and kind in _ENDING_KINDS and ended and done.left_running:
            yield (
                f"try {number} was ended by {kind}, and {len(done.left_running)} jobs kept running:"
                f" {done.left_running}"
            )
    for job in evidence.jobs:
        if (job.get("WarmPoolStatus") or {}).get("Status") in ("InUse", "Available"):
            yield f"{job['TrainingJobName']} still keeps a warm pool"


def _load_problems(evidence: Evidence) -> Iterator[str]:
    kinds = {disturbance.kind for disturbance in evidence.plan.disturbances}
    quota, parallel_jobs = quota_of(evidence.plan), PARALLEL_JOBS
    if any(kind.startswith("detach") for kind in kinds):
        parallel_jobs = len(NODE_COUNTS) * REPEATS
    elif "second_owner" in kinds:
        parallel_jobs = 2 * PARALLEL_JOBS  # each run observes the limit
    if evidence.peak_nodes > quota:
        yield f"{evidence.peak_nodes} nodes in use at once, but the quota is {quota}"
    if evidence.peak_jobs > parallel_jobs:
        yield f"{evidence.peak_jobs} jobs at once, but sweep.max_parallel_jobs is {parallel_jobs}"


def uploads_twice(calls: Iterable[Call]) -> Iterator[str]:
    """Yield content-addressed objects that were sent again after an acknowledged upload.

    An upload whose response was lost permits one more.
    """
    accepted: Counter[str] = Counter()
    unanswered: Counter[str] = Counter()
    for call in calls:
        if call.label in CONTENT_ADDRESSED and call.status == 200:
            accepted[call.path] += 1
            unanswered[call.path] += not call.answered
    for path, count in accepted.items():
        if count > 1 + unanswered[path]:
            yield (
                f"{path} was uploaded {count} times, {unanswered[path]} of them with a lost"
                " response"
            )


def _report_problems(evidence: Evidence, undisturbed: Mapping[str, Any] | None) -> Iterator[str]:
    if evidence.report is None:
        yield "there is no report in the bucket"
        return
    is_shared = any(
        disturbance.kind == "second_owner" for disturbance in evidence.plan.disturbances
    )
    if evidence.local_report != evidence.report and not is_shared:
        yield "the report in the bucket and the one on disk differ"
    listed = {job["TrainingJobName"]: job["TrainingJobStatus"] for job in evidence.jobs}
    reported = {point["job_name"]: point["status"] for point in evidence.report["points"]}
    if reported != listed:
        odd = sorted(set(reported.items()) ^ set(listed.items()))
        yield f"the report's attempts differ from the platform's jobs: {odd}"
    if undisturbed is not None and evidence.plan.keep_alive_seconds is None:
        # warm and cold starts are not comparable
        others = (job["ProcessingJobStatus"] for job in evidence.processing_jobs)
        has_stopped = any(status != "Completed" for status in (*listed.values(), *others))
        yield from differences(
            comparable(evidence.report, has_stopped), comparable(undisturbed, has_stopped), "report"
        )


def comparable(report: Mapping[str, Any], has_stopped: bool) -> dict[str, Any]:
    """Return the parts that reports of the same points share.

    Left out: sweep_id, generated_at, config, provenance, the caveat on run order; of a point
    job_name, attempt, created_at, output_uri. With stopped attempts also the attempts themselves,
    the sweep's costs and caveats, the summary's n_failed and flags, and the headline's count of
    them.
    """
    left_out = _VOLATILE | (_COUNTS_STOPPED_ATTEMPTS if has_stopped else set())
    kept = {name: value for name, value in report.items() if name not in left_out}
    if "caveats" in kept:
        kept["caveats"] = [each for each in kept["caveats"] if not each.startswith(_OF_WALL_TIME)]
    kept["points"] = {
        f"{point['nodes']}x{point['repeat']}": {
            k: v for k, v in point.items() if k not in _VOLATILE_OF_POINT
        }
        for point in report["points"]
        if point["status"] == "Completed"
    }
    if has_stopped:
        rows = report["summary"]
        kept["headline"] = _STOPPED_IN_HEADLINE.sub("", report["headline"])
        kept["summary"] = [_without_stopped_attempts(row) for row in rows]
    return kept


def _without_stopped_attempts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("n_failed", "flags")}


def differences(found: Any, wanted: Any, where: str) -> Iterator[str]:
    """Yield the paths at which two JSON values differ (numbers: by over 1e-6 relative and 5 ms)."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            yield from differences(found.get(name), wanted.get(name), f"{where}.{name}")
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, f"{where}[{number}]")
    elif not _same(found, wanted):
        yield f"{where}: {found!r}, undisturbed {wanted!r}"


def _same(found: Any, wanted: Any) -> bool:
    numbers = (int, float)
    if isinstance(found, numbers) and isinstance(wanted, numbers) and not isinstance(found, bool):
        return math.isclose(found, wanted, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)
    return bool(found == wanted)
