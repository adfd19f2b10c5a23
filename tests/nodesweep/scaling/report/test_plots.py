"""The plots as data: the texts in their SVG, and unusual curves."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nodesweep.configs.load import load_config
from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report import analyse
from nodesweep.scaling.report.plots import Drawing, draw_plots, drawing_style, to_png, to_svg
from nodesweep.scaling.report.plots.canvas import COLOURS, MAX_MARKERS, spaced
from nodesweep.scaling.report.plots.cost import draw_cost, tick_text, time_ticks
from nodesweep.scaling.report.plots.efficiency import (
    _labels,
    _points_per_unit,
    draw_efficiency,
)
from nodesweep.scaling.report.plots.phases import MAX_BARS, draw_phases
from nodesweep.scaling.report.plots.speedup import MAX_DOTS_PER_NODE_COUNT, draw_speedup
from nodesweep.scaling.report.table import evenly_spaced

SVG = "{http://www.w3.org/2000/svg}"
LOCAL = Path(__file__).parents[4] / "configs" / "local.yaml"
FOUR = ["speedup", "efficiency", "cost", "phases"]
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6, source="a list", date="2026-01-01")
PHASES = {"Starting": 30.0, "Downloading": 10.0, "Training": 60.0, "Uploading": 2.0}


def draw(report, kind: str) -> Drawing:
    """Draw one plot, which takes a quarter of the time of draw_plots()."""
    with drawing_style():
        if kind == "phases":
            return draw_phases(report)
        if kind == "cost":
            return draw_cost(report)
        curve = {"speedup": draw_speedup, "efficiency": draw_efficiency}[kind]
        return curve(report, report.baseline)


def saved(drawing: Drawing) -> bytes:
    with drawing_style():
        return to_svg(drawing)


def svg(report, kind: str) -> bytes:
    return saved(draw(report, kind))


def svgs(report, *kinds: str) -> dict[str, bytes]:
    return {kind: svg(report, kind) for kind in kinds}


def texts(plot: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(plot).iter(f"{SVG}text")]


def words(drawing: Drawing) -> set[str]:
    """Return the texts of a plot that is not saved: without its ticks, in a fifth of the time."""
    from matplotlib.text import Text

    return {text.get_text() for text in drawing.figure.findobj(Text)}


def numbers(drawing: Drawing) -> list[str]:
    """Return the alternative text of a plot, with a line per point."""
    return drawing.numbers.split("; ")


def markers(plot: bytes) -> int:
    return plot.count(b"<use ")


@pytest.fixture
def priced(make_outcomes, make_report):
    """Return rows in which 2 nodes are faster and more expensive than 1, and 4 are slower and more
    expensive than 2."""
    outcomes = [
        outcome
        for nodes, seconds in ((1, 100.0), (2, 60.0), (4, 80.0))
        for outcome in make_outcomes(
            {nodes: seconds},
            clocks=Clocks(train_seconds=seconds, billable_seconds=seconds),
            phases=PHASES,
        )
    ]
    return make_report(outcomes, price=PRICE)


def test_all_four_plots_are_drawn_stand_alone_and_name_the_kind_of_platform(priced, snapshot):
    with drawing_style():
        drawn = draw_plots(priced)
    assert list(drawn) == FOUR
    assert {kind: numbers(drawing) for kind, drawing in drawn.items()} == snapshot
    for kind, drawing in drawn.items():
        svg = saved(drawing)
        assert "(AWS, ml.m5.xlarge)" in " ".join(texts(svg))
        assert b'style="fill: #ffffff"' in svg and b"<metadata" not in svg, kind
        assert b"http:" not in re.sub(
            rb'xmlns[:a-z]*="[^"]+"|"http://www.w3.org/[^"]+dtd"', b"", svg
        )


def test_text_stays_text_with_title_legend_and_labels(make_outcomes, make_report, snapshot):
    told = texts(svg(make_report(make_outcomes({1: 99, 2: 55, 4: 27, 8: 13.5})), "speedup"))
    assert {"1.8x", "3.7x", "7.3x"} <= set(told)
    assert told == snapshot


def test_a_name_is_no_formula_and_no_markup(make_outcomes, make_report):
    name = 'ml.$\\frac$.<b id="x">&'
    report = make_report(make_outcomes({1: 40, 2: 21}, instance_type=name))
    assert f"{name})" in " ".join(texts(svg(report, "speedup")))


def test_alternative_texts_have_the_interval(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [20, 20.5, 21]}))
    assert numbers(draw(report, "speedup")) == snapshot


def test_intervals_are_drawn_from_three_repeats_on(make_outcomes, make_report):
    for repeats, drawn in (([40, 41], False), ([40, 41, 42], True)):
        report = make_report(make_outcomes({1: repeats, 2: [each / 2 for each in repeats]}))
        for kind in ("speedup", "efficiency"):
            assert ("95% interval" in words(draw(report, kind))) is drawn


def test_older_reports_have_intervals_of_lower_levels(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [20, 21, 22], 4: [10, 11, 12]}))
    rows = list(report.summary)
    train = rows[1].train.model_copy(
        update={"speedup_interval": Interval(low=1.9, high=2.0, level=0.9)}
    )
    clocks = rows[1].clocks.model_copy(update={"train": train})
    rows[1] = rows[1].model_copy(update={"clocks": clocks})
    mixed = report.model_copy(update={"summary": tuple(rows)})
    assert "90 to 95% interval" in words(draw(mixed, "speedup"))


@pytest.mark.parametrize(
    "times",
    [
        {1: 40},
        {3: 40},
        {1: 10, 2: 50, 4: 200},
        {1: 100, 2: 10},
        {512: 3, 511: 4},
        {1: 1e9, 1_000_000: 1e-6},
    ],
)
def test_odd_curves_are_drawn(times, make_outcomes, make_report):
    report = make_report(make_outcomes(times, phases={"Training": 5.0}))
    with drawing_style():
        for drawing in draw_plots(report).values():
            assert drawing.numbers and to_png(drawing, 40).startswith(b"\x89PNG")


def test_a_point_that_failed_is_marked(make_outcomes, make_outcome, make_report):
    report = make_report([*make_outcomes({1: 40, 8: 7}), make_outcome(4)])
    for plot in svgs(report, "speedup", "efficiency").values():
        assert {"not completed", "4"} <= set(texts(plot))


def test_no_completed_point_no_plot(make_outcome, make_report):
    assert draw_plots(make_report([make_outcome(1)])) == {}


def test_many_repeats_draw_a_bounded_number_of_dots(make_outcomes, make_report):
    few = svg(make_report(make_outcomes({1: [40.0] * MAX_DOTS_PER_NODE_COUNT})), "speedup")
    many = svg(make_report(make_outcomes({1: [40.0] * MAX_DOTS_PER_NODE_COUNT * 5})), "speedup")
    assert markers(many) == markers(few)


def test_many_node_counts_draw_a_bounded_number_of_markers(make_outcomes, make_report, snapshot):
    report = make_report(
        make_outcomes({nodes: 1e4 / nodes for nodes in range(1, 301)}, phases=PHASES)
    )
    for plot in svgs(report, "speedup", "efficiency", "cost").values():
        assert MAX_MARKERS <= markers(plot) < 2 * MAX_MARKERS + 100
    phases = draw(report, "phases")
    assert len(numbers(phases)) == MAX_BARS
    assert phases.caption == snapshot


def test_throughput_only_points_are_hollow_and_labelled(make_outcome, make_report):
    def run(nodes, value):
        return make_outcome(
            nodes, 40 / nodes, metrics={"final_metric": {"name": "a", "value": value, "goal": None}}
        )

    for plot in svgs(make_report([run(1, 0.9), run(2, 0.5)]), *FOUR[:3]).values():
        assert "throughput only" in texts(plot)
        assert COLOURS["hollow"].encode() in plot


def test_points_of_starved_nodes_are_hollow_and_labelled(make_outcome, make_report):
    outcomes = [
        make_outcome(nodes, 40 / nodes, utilisation={"attained_percent": percent})
        for nodes, percent in ((1, 99.0), (2, 98.0), (4, 40.0))
    ]
    for plot in svgs(make_report(outcomes), "speedup", "efficiency").values():
        assert "contended" in texts(plot)
        assert COLOURS["hollow"].encode() in plot


def test_threshold_is_the_configs_or_the_default(make_outcomes, make_report):
    outcomes = make_outcomes({1: 40, 2: 21})
    assert "75% threshold" in words(draw(make_report(outcomes), "efficiency"))
    stricter = load_config(LOCAL, ["report.recommendation.min_efficiency=0.9"])
    assert "90% threshold" in words(draw(make_report(outcomes, config=stricter), "efficiency"))
    of_table = make_report(outcomes, provenance={"limits": {"min_efficiency": 0.9}})
    assert "90% threshold" in words(draw(of_table, "efficiency"))


def test_single_runs_lie_around_the_speedup_where_samples_grow_with_the_nodes():
    rows = [f"{nodes},{100 + run},{64 * nodes}" for nodes in (1, 2, 4) for run in range(3)]
    outcomes = read_measured("\n".join(["nodes,train_seconds,global_batch_size", *rows]))
    report = analyse("table", None, None, outcomes, None, {}, datetime(2026, 1, 1, tzinfo=UTC))
    lines = draw(report, "speedup").axes.get_lines()
    (dots,) = [line for line in lines if line.get_label() == "single runs"]
    assert report.summary[-1].train.speedup == pytest.approx(4)
    assert dots.get_ydata() == pytest.approx([1, 1, 1, 2, 2, 2, 4, 4, 4], rel=0.02)


def test_costs_are_drawn_with_the_pareto_front(priced, snapshot):
    drawing = draw(priced, "cost")
    assert texts(saved(drawing)) == snapshot
    front = [point.endswith("Pareto front") for point in numbers(drawing)]
    assert front == [True, True, False]


def test_unknown_costs_become_node_hours_and_say_so(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 7200, 2: 4500, 4: 5400}))
    drawing = draw(report, "cost")
    assert texts(saved(drawing)) == snapshot(name="drawn")
    assert numbers(drawing) == snapshot(name="alternative text")
    assert drawing.caption == snapshot(name="caption")


def test_rates_are_drawn_as_time_per_sample(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 0.002, 2: 0.0011}, train_clock="throughput"))
    assert texts(svg(report, "cost")) == snapshot(name="drawn")
    assert draw(report, "speedup").caption == snapshot(name="caption")


def test_phases_are_stacked_in_order_and_others_added_up(make_outcomes, make_report, snapshot):
    report = make_report(
        make_outcomes({1: 40}, phases={"Training": 40.0, "Starting": 9.0, "Odd": 1.0, "Odder": 2.0})
    )
    drawing = draw(report, "phases")
    assert numbers(drawing) == snapshot
    assert "52.0 s" in texts(saved(drawing))


def test_long_phases_are_drawn_in_hours_and_missing_ones_left_out(
    make_outcomes, make_report, snapshot
):
    outcomes = [
        *make_outcomes({1: 40}, phases={"Starting": 3600.0, "Training": 7200.0}),
        *make_outcomes({2: 40}, phases={"Training": 3600.0}),
    ]
    report = make_report(outcomes)
    drawing = draw(report, "phases")
    assert texts(saved(drawing)) == snapshot(name="drawn")
    assert numbers(drawing) == snapshot(name="alternative text")


def test_without_a_time_to_train_there_is_no_front(make_outcome, make_report):
    def run(nodes, value, billable):
        return make_outcome(
            nodes,
            40 / nodes,
            clocks=Clocks(train_seconds=40 / nodes, billable_seconds=billable),
            metrics={"final_metric": {"name": "a", "value": value, "goal": None}},
        )

    drawing = draw(make_report([run(1, 0.9, None), run(2, 0.5, 30.0)], price=PRICE), "cost")
    assert "throughput only" in words(drawing) and "Pareto front" not in words(drawing)


def test_no_phases_no_plot_of_them(make_outcomes, make_report):
    assert list(draw_plots(make_report(make_outcomes({1: 40, 2: 21})))) == FOUR[:3]


def testtime_ticks_are_round_and_few():
    assert time_ticks(290, 6000) == [300, 600, 1200, 3600]
    assert time_ticks(41, 42) == [42]
    assert time_ticks(33, 55) == [33, 55]
    assert [tick_text(seconds) for seconds in (0.5, 20, 300, 7200, 4500)] == [
        "500 ms",
        "20 s",
        "5 min",
        "2 h",
        "1 h 15 min",
    ]


def test_labels_are_spaced_and_items_thinned():
    assert spaced([1, 2, 4, 8]) == [1, 2, 4, 8]
    assert spaced([7, 8]) == [8]
    assert evenly_spaced([1, 2, 3], 3) == [1, 2, 3]
    assert evenly_spaced(list(range(10)), 4) == [0, 3, 6, 9]


def boxes(drawing) -> dict[str, tuple[float, float, float, float]]:
    """Return (left, bottom, right, top) of every text in the axes, in pixels."""
    drawing.figure.draw_without_rendering()
    return {text.get_text(): text.get_window_extent().extents for text in drawing.axes.texts}


def test_efficiency_labels_keep_clear_of_the_lines_the_axis_and_the_ticks(
    make_outcomes, make_report
):
    """97% has room below, 88% on neither side, 80% only above the threshold, 6% only above the
    axis.
    """
    shares = {1: 1.0, 2: 0.97, 4: 0.88, 8: 0.80, 16: 0.70, 32: 0.06}
    report = make_report(
        make_outcomes({nodes: 100 / (nodes * share) for nodes, share in shares.items()})
    )
    with drawing_style():
        drawing = draw(report, "efficiency")
        found = boxes(drawing)
        heights = [drawing.axes.transData.transform((1, y))[1] for y in (0.75, 1.0)]
        floor, side = drawing.axes.get_window_extent().y0, drawing.axes.get_window_extent().x0
    for share in shares.values():
        left, bottom, _, top = found[f"{share * 100:.0f}%"]
        assert bottom > floor and left > side - 4
        assert not any(bottom - 2 < height < top + 2 for height in heights), share
    ordered = sorted(tuple(box) for box in found.values())
    assert not any(a[2] > b[0] and a[1] < b[3] and b[1] < a[3] for a, b in pairwise(ordered))


def test_an_efficiency_label_goes_to_the_side_with_room():
    """1.5 points per percentage point: 23 points are 15 percentage points, a label is 6 of them
    high.
    """

    def offset(efficiency: float) -> tuple[float, str]:
        _, second = _labels([(1, 1.0, None), (2, efficiency, None)], (0.0, 0.75, 1.0), 150)
        return second.offset[1], second.align

    assert offset(0.6) == offset(1.0) == (-23, "center")
    assert offset(0.8) == offset(0.1) == offset(1.05) == (11, "center")
    assert [offset(share)[0] for share in (0.92, 0.9, 0.85, 0.88)] == [-17, -17, 7, -34]
    for percent in range(1, 200):
        bottom = percent * 1.5 + offset(percent / 100)[0]
        assert bottom > 2 and not any(bottom - 2 < line < bottom + 11 for line in (112.5, 150.0)), (
            percent
        )


def test_an_efficiency_label_stands_beyond_its_interval(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [30, 34, 38]}))
    with drawing_style():
        drawing = draw(report, "efficiency")
        (label,) = [text for text in drawing.axes.texts if text.get_text() == "61%"]
        assert _points_per_unit(drawing) == pytest.approx(150, rel=0.25)
    interval = report.summary[1].train.efficiency_interval
    assert label.xy == (2, interval.low)


def test_a_superlinear_speedup_has_its_label_above_the_ideal_line(make_outcomes, make_report):
    drawing = draw(make_report(make_outcomes({1: 40, 2: 16, 4: 12})), "speedup")
    places = {text.get_text(): text.xyann for text in drawing.axes.texts}
    assert (places["2.5x"], places["3.3x"]) == ((-7, 7), (7, -14))


@pytest.mark.parametrize("clock", ["throughput", "program"])
def test_titles_are_not_clipped(clock, make_outcomes, make_report):
    given = {
        "platform_kind": "simulated",
        "instance_type": "ml.p4de.24xlarge",
        "train_clock": clock,
    }
    with drawing_style():
        for kind, drawing in draw_plots(
            make_report(make_outcomes({1: 0.002, 2: 0.001}, **given))
        ).items():
            drawing.figure.draw_without_rendering()
            title = (
                drawing.axes.title if drawing.axes.title.get_text() else drawing.axes._left_title
            )
            assert " ".join(title.get_text().split()) == drawing.title
            assert title.get_window_extent().x1 < drawing.figure.bbox.x1, kind


@pytest.mark.parametrize("unknown", [(), (8,), (2, 4, 8), tuple(range(2, 11))], ids=str)
def test_a_count_without_a_cost_is_named_under_the_cost_plot(
    unknown, make_outcome, make_report, snapshot
):
    def run(n: int):
        billable = None if n in unknown else 50
        clocks = Clocks(train_seconds=40 / n, billable_seconds=billable)
        return make_outcome(n, 40 / n, clocks=clocks)

    report = make_report([run(n) for n in sorted({1, 2, 4, 8, *unknown})], price=PRICE)
    assert draw(report, "cost").caption == snapshot


def test_a_given_cost_is_not_called_computed(make_report, snapshot):
    given = make_report(read_measured("nodes,train_seconds,cost_usd\n1,40,2\n2,21,2.2\n"))
    assert draw(given, "cost").caption == snapshot


def test_a_warm_pool_is_drawn_into_the_cost_of_its_run(make_outcome, make_report, snapshot):
    clocks = Clocks(train_seconds=40, billable_seconds=3600)
    runs = [
        make_outcome(n, 40 / n, clocks=clocks, retained_billable_seconds=3600.0) for n in (1, 2)
    ]
    report = make_report(runs, price=PRICE)
    drawing = draw(report, "cost")
    assert drawing.caption == snapshot
    # an hour of the run and one of the pool at 3.60 USD
    assert " $7.20," in numbers(drawing)[0]
