"""The judge of a chaos run finds each broken promise, and finds none where all were kept."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from benchmarks.chaos.ledger import broken_invariants, comparable, differences, uploads_twice
from benchmarks.chaos.plan import ChaosPlan
from benchmarks.chaos.proxy import Call
from benchmarks.chaos.run import Evidence, Try, wait_by_progress
from nodesweep.cli.processes import Progress
from nodesweep.scaling import names
from nodesweep.scaling.analysis.odd_data import find_confounded

SWEEP = "chaos-20261121024705-75cbf942"
POINTS = [(nodes, repeat) for nodes in (1, 2, 4) for repeat in (1, 2)]


def job(nodes: int, repeat: int, attempt: int = 1, status: str = "Completed") -> dict[str, Any]:
    name = f"{SWEEP}-n{nodes}-r{repeat}-a{attempt}-0123"
    return {"TrainingJobName": name, "TrainingJobStatus": status, "FailureReason": "none"}


def row_of(n_failed: int) -> dict[str, Any]:
    return {"nodes": 1, "n_failed": n_failed, "cost_spread": {"next_run_usd": 0.04}}


def report_of(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    points = []
    for each in jobs:
        _, nodes, repeat, _ = names.parse_job_name(each["TrainingJobName"]) or ("", 0, 0, 0)
        points.append({"nodes": nodes, "repeat": repeat, "clocks": {"train_seconds": 100.0}})
        points[-1] |= {"job_name": each["TrainingJobName"], "status": each["TrainingJobStatus"]}
    return {
        "headline": "2 are best",
        "summary": [row_of(n_failed=0)],
        "points": points,
        "costs": 1.0,
    }


def evidence_of(jobs: list[dict[str, Any]], **changes: Any) -> Evidence:
    """Evidence of a run that was killed once and kept every promise."""
    kind = changes.pop("kind", "kill")
    evidence = Evidence(
        plan=ChaosPlan(seed=0, disturbances=()),
        tries=[Try(f"{kind} after StartBuild#1", True, -9, 1.0, ""), Try(None, False, 0, 1.0, "")],
        jobs=jobs,
        processing_jobs=[],
        stopped_sweeps=frozenset(),
        sweep=SWEEP,
        report=report_of(jobs),
        local_report=report_of(jobs),
        calls=[],
        faults={},
        peak_nodes=5,
        peak_jobs=2,
        seconds=2.0,
    )
    return replace(evidence, **changes)


DONE = [job(nodes, repeat) for nodes, repeat in POINTS]


def test_a_kept_promise_breaks_nothing() -> None:
    assert broken_invariants(evidence_of(DONE), report_of(DONE)) == []


def test_a_stopped_attempt_is_part_of_a_cancel() -> None:
    jobs = [job(1, 1, status="Stopped"), job(1, 1, attempt=2), *DONE[1:]]
    report = report_of(jobs)
    report |= {
        "headline": "2 are best; 1 of 7 jobs did not complete",
        "summary": [row_of(n_failed=1)],
    }
    cancelled = evidence_of(
        jobs, kind="sigterm", report=report | {"costs": 2.0}, local_report=report | {"costs": 2.0}
    )
    assert broken_invariants(cancelled, report_of(DONE)) == []
    killed = replace(cancelled, tries=evidence_of(DONE).tries)
    assert [
        "nobody requested it" in problem for problem in broken_invariants(killed, report_of(DONE))
    ] == [True]


TWICE = Call("PUT code", "/chaos/nodesweep/code/ab/sourcedir.tar.gz", 4, 200, answered=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"jobs": DONE[1:]}, "1 nodes, repeat 1: 0 completed jobs"),
        ({"jobs": [*DONE, job(1, 1, attempt=2)]}, "1 nodes, repeat 1: 2 completed jobs"),
        ({"jobs": [*DONE, job(1, 1, attempt=2, status="InProgress")]}, "is still InProgress"),
        ({"jobs": [*DONE, job(1, 1, attempt=2, status="Failed")]}, "failed: none"),
        ({"jobs": [*DONE, job(8, 1)]}, "8 nodes, repeat 1"),
        (
            {"jobs": [*DONE[1:], {**DONE[0], "TrainingJobName": "other"}]},
            "other does not belong",
        ),
        ({"peak_nodes": 6}, "6 nodes"),
        ({"peak_jobs": 3}, "3 jobs at once"),
        ({"calls": [TWICE, TWICE]}, "2 times"),
        (
            {"calls": [Call("CreateTrainingJob", "/", 9, 200, answered=True)] * 7},
            "7 jobs",
        ),
        ({"report": None}, "no report"),
        ({"local_report": None}, "disk differ"),
        ({"report": report_of(DONE) | {"costs": 2.0}}, "report.costs: 2.0, undisturbed 1.0"),
        (
            {
                "tries": [
                    Try("stop after ListTags#1", True, 1, 1.0, "", ["a-job"]),
                    Try(None, False, 0, 1.0, ""),
                ]
            },
            "ended by stop",
        ),
        (
            {"jobs": [{**DONE[0], "WarmPoolStatus": {"Status": "Available"}}, *DONE[1:]]},
            "a warm pool",
        ),
        (
            {"tries": [Try(None, False, 1, 1.0, "AWS call failed")]},
            "ended with exit code 1",
        ),
        ({"tries": [Try(None, False, None, 240.0, "")]}, "one hung"),
    ],
)
def test_a_broken_promise_is_noticed(changes: dict[str, Any], words: str) -> None:
    broken = broken_invariants(evidence_of(**{"jobs": DONE, **changes}), report_of(DONE))
    assert any(words in problem for problem in broken), broken


def test_a_lost_answer_excuses_one_more_upload() -> None:
    lost = replace(TWICE, answered=False)
    assert list(uploads_twice([lost, TWICE])) == []
    assert len(list(uploads_twice([lost, TWICE, TWICE]))) == 1
    assert list(uploads_twice([replace(TWICE, status=503), TWICE])) == []
    assert list(uploads_twice([replace(TWICE, label="PUT owner")] * 3)) == []


def test_reports_are_compared_by_value() -> None:
    one, other = comparable(report_of(DONE), False), comparable(report_of(DONE), False)
    other["points"]["2x1"]["clocks"]["train_seconds"] += 0.004
    assert list(differences(one, other, "report")) == []
    other["points"]["2x1"]["clocks"]["train_seconds"] += 1
    assert [line.split(":")[0] for line in differences(one, other, "report")] == [
        "report.points.2x1.clocks.train_seconds"
    ]
    assert len(list(differences([1], [1, 2], "list"))) == 1
    assert len(list(differences(True, 1.0001, "flag"))) == 1


def test_a_busy_machine_that_sends_jobs_in_another_order_breaks_no_promise() -> None:
    said = next(find_confounded([1, 1, 2, 2]))
    one, other = ({**report_of(DONE), "caveats": caveats} for caveats in ([], [said]))
    assert list(differences(comparable(one, False), comparable(other, False), "report")) == []
    other["caveats"] = ["Cost unknown"]
    assert len(list(differences(comparable(one, False), comparable(other, False), "report"))) == 1


class Slow:
    """A process of this test program that ends at the fourth poll."""

    def __init__(self, looks: int) -> None:
        self.pid, self.looks = os.getpid(), looks

    def wait(self, timeout: float) -> int:
        self.looks -= 1
        if self.looks:
            raise subprocess.TimeoutExpired("try", timeout)
        return 7


def test_a_try_is_given_up_when_it_gets_nowhere_and_not_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wait_by_progress(cast(Any, Slow(4))) == 7
    monkeypatch.setattr(Progress, "problem", lambda progress: "after 60 s without progress")
    with pytest.raises(subprocess.TimeoutExpired):
        wait_by_progress(cast(Any, Slow(4)))


def validation(
    attempt: int = 1,
    status: str = "Completed",
    sweep: str = SWEEP,
    seconds: float | None = 300.0,
) -> dict[str, Any]:
    """Return a Processing job that had its instances for these seconds; None: it got no
    instances."""
    times = {"ProcessingStartTime": BEGUN, "ProcessingEndTime": BEGUN + timedelta(0, seconds or 0)}
    return {
        "ProcessingJobName": f"{sweep}-v{attempt}-0123abcd",
        "ProcessingJobStatus": status,
        **(times if seconds is not None else {}),
    }


def on_spark(jobs: list[dict[str, Any]], usd: float, **changes: Any) -> Evidence:
    """Return a run on Spark whose report has the validation of the last job."""
    recorded = {"job": jobs[-1]["ProcessingJobName"], "billed_seconds": 300.0, "usd": usd}
    report = report_of(DONE) | {"provenance": {"dataset_validation": recorded}}
    plan = ChaosPlan(seed=2, disturbances=(), on_spark=True, **changes.pop("plan", {}))
    reports = {"report": report, "local_report": report}
    return evidence_of(DONE, plan=plan, processing_jobs=jobs, **reports, **changes)


BEGUN = datetime(2026, 11, 25, tzinfo=UTC)
USD = 300 * 2 * 0.23 / 3600
LOST = {"api_faults": ({"fault": "internal_error", "jobs": "*-v?-*"},)}
OTHER = "chaos-20261121024700-75cbf942"


@pytest.mark.parametrize(
    "kept",
    [
        on_spark([validation()], USD),
        on_spark([validation(1, "Failed", seconds=150.0), validation(2)], 1.5 * USD, plan=LOST),
        on_spark([validation(1, "Failed", seconds=None), validation(2)], USD, plan=LOST),
        on_spark([validation(1, "Stopped"), validation(2)], 2 * USD, kind="sigterm"),
        on_spark([validation(sweep=OTHER), validation()], USD, stopped_sweeps=frozenset({OTHER})),
    ],
)
def test_a_validation_that_was_paid_for_once_breaks_nothing(kept: Evidence) -> None:
    assert broken_invariants(kept, None) == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (on_spark([validation(1), validation(2)], 2 * USD), "2 completed Processing jobs"),
        (on_spark([validation(status="InProgress")], USD), "is still InProgress"),
        (on_spark([validation(1, "Stopped"), validation(2)], 2 * USD), "nobody requested it"),
        (on_spark([validation(1, "Failed"), validation(2)], 2 * USD), "-v1-0123abcd failed"),
        (on_spark([validation(sweep=OTHER), validation()], USD), "belongs to a second sweep"),
        (
            on_spark([validation(2), validation(1, "Failed")], USD, plan=LOST),
            "the report's validation is",
        ),
        (on_spark([validation(seconds=200.0)], USD), "billed 300.0 s"),
        (
            on_spark([validation(1, "Failed", seconds=150.0), validation(2)], USD, plan=LOST),
            "USD, but all",
        ),
    ],
)
def test_a_validation_that_was_paid_for_twice_is_noticed(broken: Evidence, words: str) -> None:
    problems = broken_invariants(broken, None)
    assert any(words in problem for problem in problems), problems
