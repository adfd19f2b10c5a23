"""The parts of the time, as the report shows them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.step_budget import CAUSES, EfficiencyLoss, LossCause
from nodesweep.scaling.report.plots import drawing_style, to_svg
from nodesweep.scaling.report.plots.parts import draw_parts
from nodesweep.scaling.report.render import (
    render_files,
    render_html,
    render_json,
    render_markdown,
)
from nodesweep.scaling.report.share import without_account_names
from nodesweep.scaling.report.tables.budget import _loss_text, budget_table, loss_lines
from tests.nodesweep.scaling.analysis.test_step_budget import observed, rank, run
from tests.nodesweep.scaling.report.test_plots import texts
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


def test_the_headline_says_what_limits_more_nodes_than_recommended(
    make_outcome, make_report, snapshot
):
    steep = {**PARTS, 8: (12.0, 12.0, 8.0, 1.0)}
    found = make_report(outcomes(make_outcome, parts=steep))
    assert found.recommendation.chosen.nodes == 2
    assert found.headline == snapshot
    flat = {1: (96.0, 0.0, 0.0, 4.0), 2: (48.0, 0.5, 0.0, 2.0)}
    assert "efficiency loses" not in make_report(outcomes(make_outcome, parts=flat)).headline


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


def test_without_training_nothing_is_said_of_its_parts(make_outcomes, make_report):
    table = {"platform_kind": "measured", "train_clock": "measured"}
    report = make_report(make_outcomes({1: 100.0, 2: 60.0}, **table))
    assert (budget_table(report), loss_lines(report)) == (None, [])
    assert not {"step_budget", "missing_parts"} & json.loads(render_json(report)).keys()
    assert "Where the time goes" not in render_html(report) + render_markdown(report)


def forms(report):
    shared = render_html(without_account_names(report))
    texts = (render_html(report), render_markdown(report), terminal(report), shared)
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]


def test_page_markdown_and_terminal_say_why_the_parts_are_missing(
    make_outcome, make_outcomes, make_report, snapshot
):
    short = "steps under 20 ms are not split"
    several = [
        observed(make_outcome, 1, ranks=[rank(forward=10.0)]),
        *(observed(make_outcome, nodes, short) for nodes in (2, 4)),
        observed(make_outcome, 8, "no backward pass was seen"),
    ]
    for outcomes in (several, make_outcomes({1: 100.0, 2: 60.0})):
        report = make_report(outcomes)
        lines = loss_lines(report)
        assert lines == snapshot
        for text in forms(report):
            assert all(line in text for line in lines)
        written = json.loads(render_json(report))["missing_parts"]
        assert sum(each["n"] for each in written) == len(outcomes) - (outcomes is several)


def test_a_reason_is_shared_without_names(make_outcome, make_report):
    outcomes = [observed(make_outcome, nodes, "no /home/jane/data") for nodes in (1, 2)]
    [line] = loss_lines(without_account_names(make_report(outcomes)))
    assert "(path)" in line and "jane" not in line


@pytest.mark.usefixtures("pages_with_plots")
def test_a_bar_per_node_count_shows_the_shares(make_outcome, make_report, snapshot):
    parts = {**PARTS, 8: (12.0, 9.0, 0.0, 0.01)}
    report = make_report(outcomes(make_outcome, parts=parts))
    with drawing_style():
        drawing = draw_parts(report)
        assert texts(to_svg(drawing)) == snapshot
    assert [drawing.numbers.split("; "), drawing.caption] == snapshot
    files = render_files(report)
    page = files["report.html"].decode()
    section = page.partition("<h2>Where the time goes</h2>")[2].partition("</section>")[0]
    assert page.count('id="plot-parts"') == section.count('id="plot-parts"') == 1
    assert drawing.numbers in section
    assert {"parts.svg", "parts.png"} <= files.keys()


def test_small_parts_are_one_layer(make_outcome, make_report):
    small = {"checkpoint": 0.04, "evaluation": 0.03}
    made = [run(make_outcome, 1, 10.0, [rank(forward=9.93, **small)])]
    assert draw_parts(make_report(made)).numbers == "1 node: compute 99%, other 1%"


SLOWER = {1: (10.0, 0.0, 0.0, 0.0), 2: (4.0, 1.0, 13.0, 0.0), 4: (3.0, 3.0, 8.0, 1.0)}


def test_slower_on_more_nodes_is_explained_by_the_measured_cause(
    make_outcome, make_report, snapshot
):
    report = make_report(outcomes(make_outcome, parts=SLOWER))
    assert report.headline == snapshot
    assert [caveat for caveat in report.caveats if caveat.startswith("Retrograde")] == snapshot
    assert loss_lines(report) == snapshot


def test_slower_without_a_cause_above_the_noise_names_none(make_outcome, make_report, snapshot):
    small = ("communication", "data", "evaluation", "checkpoint", "start", "other")
    spread = dict.fromkeys(small, 2.2 / len(small))
    made = [
        run(make_outcome, 6, 10.0, [rank(each, forward=10.0) for each in range(6)]),
        run(make_outcome, 7, 10.7, [rank(each, forward=8.5, **spread) for each in range(7)]),
    ]
    report = make_report(made)
    assert [caveat for caveat in report.caveats if caveat.startswith("Retrograde")] == snapshot
    assert "noise" not in report.headline


@st.composite
def losses(draw):
    """Draw a loss whose causes have any sign, size and certainty."""
    with_intervals = draw(st.booleans())
    causes = []
    for name in CAUSES:
        cost = draw(st.floats(-0.6, 0.8))
        reach = draw(st.floats(0.0, 0.3))
        interval = Interval(low=cost - reach, high=cost + reach) if with_intervals else None
        is_named = cost >= 0.02 and cost > reach if with_intervals else cost >= 0.05
        causes.append(LossCause(cause=name, efficiency=cost, interval=interval, named=is_named))
    causes.sort(key=lambda each: -each.efficiency)
    total = sum(each.efficiency for each in causes)
    return EfficiencyLoss(
        from_nodes=1, to_nodes=2, efficiency=total, causes=tuple(causes), slowest_node=None
    )


@given(losses())
def test_the_numbers_of_a_sentence_add_up(loss):
    """Each is rounded by half a point at most; the total and up to 9 terms are."""
    text = re.sub(r" \[[^]]*\]", "", _loss_text(loss))
    if loss.efficiency < 0 or not loss.named:
        return
    falls, _, terms = text.partition(" points: ")
    costs, _, less = terms.partition(", less ")
    total = int(falls.rpartition(" ")[2])
    numbers = [[int(number) for number in re.findall(r"\d+", part)] for part in (costs, less)]
    assert abs(sum(numbers[0]) - sum(numbers[1]) - total) <= 0.5 * (1 + sum(map(len, numbers)))
