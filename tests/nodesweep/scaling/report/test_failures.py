"""The lines about failed runs, on a terminal and in the pages."""

from __future__ import annotations

from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.report.failures import LINES_SHOWN, MAX_CAUSES_SHOWN, failure_lines
from nodesweep.scaling.report.render import render_html, render_markdown


def test_each_cause_is_shown_once_with_its_error_and_last_lines(
    make_outcome, make_outcomes, make_report, snapshot
):
    error = ProgramError(
        said="train.py: error: unrecognized arguments: --x 1", where="train.py", advice="rename it"
    )
    tail = tuple(f"algo-1: line {number}" for number in range(LINES_SHOWN + 5))
    failed = [make_outcome(nodes, program_error=error, log_tail=tail) for nodes in (2, 4)]
    lines = failure_lines(make_report([*make_outcomes({1: 40}), *failed]))
    assert lines[1:-1] == [f"    {line}" for line in tail[5:]]
    assert [lines[0], lines[-1]] == snapshot


def test_error_is_one_line_in_the_pages(make_outcome, make_report):
    error = ProgramError(
        said="ValueError: label 17", where="train.py, line 3", advice="look at the labels"
    )
    report = make_report(
        [make_outcome(2, program_error=error, failed_host="algo-2", failed_rank=3)]
    )
    for page in (render_html(report), render_markdown(report)):
        assert error.text in page
        assert " algo-2, rank 3\n" in page.replace("\\-", "-").replace("</p>", "")


def test_reason_stands_for_an_error_that_no_log_tells_of(make_outcome, make_report, snapshot):
    reasons = [
        "CapacityError: none",
        "AlgorithmError: a",
        "AlgorithmError: b",
        "ClientError: c",
        None,
    ]
    lines = failure_lines(
        make_report([make_outcome(1, repeat=n, reason=text) for n, text in enumerate(reasons, 1)])
    )
    assert len(lines) == MAX_CAUSES_SHOWN + 1
    assert lines == snapshot(name="causes")
    assert failure_lines(make_report([make_outcome(1, reason=None)])) == snapshot(name="no reason")


def test_nothing_is_said_where_all_completed(make_outcomes, make_report):
    assert failure_lines(make_report(make_outcomes({1: 40, 2: 21}))) == []
