"""Where the time goes, as the report shows it."""

from __future__ import annotations

import json

import pytest

from nodesweep.scaling.report.render import render_html, render_json, render_markdown
from nodesweep.scaling.report.share import without_account_names
from nodesweep.scaling.report.tables.budget import budget_table, loss_lines
from tests.nodesweep.scaling.analysis.test_step_budget import rank, run
from tests.nodesweep.scaling.report.test_sources import terminal

# By node count: seconds of compute, communication of the slowest node, wait for it, data wait.
PARTS = {1: (96.0, 0.0, 0.0, 4.0), 2: (48.0, 4.0, 1.0, 2.0), 4: (24.0, 6.0, 5.0, 1.0)}


def outcomes(make_outcome, repeats=1, parts=PARTS, drop_ranks=False):
    made = []
    for nodes, (compute, transfer, wait, data) in parts.items():
        for repeat in range(1, repeats + 1):
            extra = 0.1 * repeat
            ranks = [
                rank(
                    each,
                    communication=transfer + (wait if each < nodes - 1 else 0.0),
                    forward=compute / 3 + extra,
                    backward=2 * compute / 3 + (wait if each == nodes - 1 else 0.0),
                    data=data,
                )
                for each in range(nodes)
            ]
            seconds = compute + transfer + wait + data + extra
            made.append(run(make_outcome, nodes, seconds, ranks, repeat))
    return made


@pytest.mark.parametrize("repeats", [1, 3])
def test_each_doubling_is_explained(make_outcome, make_report, repeats, snapshot):
    report = make_report(outcomes(make_outcome, repeats))
    assert loss_lines(report) == snapshot
    table = budget_table(report)
    assert [table.title, table.caption, table.meanings] == snapshot
    assert table.cells.to_dict("list") == snapshot


def test_it_stands_in_page_markdown_terminal_and_json(make_outcome, make_report):
    report = make_report(outcomes(make_outcome))
    line = loss_lines(report)[-1]
    for text in (render_html(report), render_markdown(report), terminal(report)):
        assert line in text.replace("\N{NO-BREAK SPACE}", " ")
    assert line in render_html(without_account_names(report)).replace("\N{NO-BREAK SPACE}", " ")
    written = json.loads(render_json(report))["step_budget"]
    for count, row in zip(written["counts"], report.summary, strict=True):
        assert sum(part["seconds"] for part in count["parts"]) == pytest.approx(row.train.seconds)


def test_a_small_loss_has_no_sentence_and_noise_no_cause(make_outcome, make_report, snapshot):
    efficient = {1: (96.0, 0.0, 0.0, 4.0), 2: (48.0, 0.5, 0.0, 2.0)}
    assert loss_lines(make_report(outcomes(make_outcome, parts=efficient))) == []
    spread = {1: (100.0, 0.0, 0.0, 0.0), 2: (50.0, 1.5, 0.0, 1.0)}
    assert loss_lines(make_report(outcomes(make_outcome, parts=spread))) == snapshot


def test_waiting_that_is_not_known_is_within_the_communication(make_outcome, make_report, snapshot):
    made = outcomes(make_outcome)
    made[-1].metrics["budget"].pop()
    table = budget_table(make_report(made))
    assert "waiting" not in table.cells
    assert table.meanings["communication"] == snapshot


def test_without_parts_the_report_is_as_before(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 100.0, 2: 60.0}))
    assert (budget_table(report), loss_lines(report)) == (None, [])
    assert "step_budget" not in json.loads(render_json(report))
