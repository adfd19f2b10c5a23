"""The speedup plot as data: what the SVG says, and that odd curves can be drawn."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from scaling.report.plot import COLOURS, MAX_DOTS_PER_NODE_COUNT, speedup_png, speedup_svg


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_text_stays_text_with_title_legend_and_labels(make_outcomes, make_report):
    svg = speedup_svg(make_report(make_outcomes({1: 99, 2: 55, 4: 27, 8: 13.5})))
    words = texts(svg)
    assert {"Speedup (AWS, ml.m5.xlarge)", "batch policy unknown", "ideal", "measured, n = 1", "nodes"} <= set(words)
    assert {"1.8x", "3.7x", "7.3x"} <= set(words)


def test_svg_is_deterministic_scales_and_follows_the_page(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40, 41], 2: 21}))
    svg = speedup_svg(report)
    assert svg == speedup_svg(report)
    assert svg.startswith("<svg") and "viewBox" in svg
    assert "metadata" not in svg and 'width="' not in svg[: svg.index(">")]
    for name, colour in COLOURS.items():
        assert svg.count(colour) == svg.count(f"var(--{name}, {colour})")


@pytest.mark.parametrize(
    "times",
    [
        {1: 40},
        {3: 40},
        {1: 10, 2: 50, 4: 200},
        {1: 100, 2: 10},
        {512: 3, 511: 4},
        {nodes: 1e6 / nodes for nodes in range(1, 200)},
        {1: 1e9, 1_000_000: 1e-6},
    ],
)
def test_odd_curves_are_drawn(times, make_outcomes, make_report):
    report = make_report(make_outcomes(times))
    assert texts(speedup_svg(report))
    assert speedup_png(report).startswith(b"\x89PNG")


def test_a_point_that_failed_is_marked(make_outcomes, make_outcome, make_report):
    words = texts(speedup_svg(make_report([*make_outcomes({1: 40, 8: 7}), make_outcome(4)])))
    assert "not completed" in words
    assert "4" in words


def test_no_completed_point_no_plot(make_outcome, make_report):
    report = make_report([make_outcome(1)])
    assert (speedup_svg(report), speedup_png(report)) == (None, None)


def test_many_repeats_draw_a_bounded_number_of_dots(make_outcomes, make_report):
    few = speedup_svg(make_report(make_outcomes({1: [40.0] * MAX_DOTS_PER_NODE_COUNT})))
    many = speedup_svg(make_report(make_outcomes({1: [40.0] * MAX_DOTS_PER_NODE_COUNT * 5})))
    assert many.count("<use") == few.count("<use")


def test_throughput_only_points_are_hollow(make_outcome, make_report):
    def run(nodes, value):
        return make_outcome(nodes, 40 / nodes, metrics={"final_metric": {"name": "a", "value": value, "goal": None}})

    assert "throughput only" in texts(speedup_svg(make_report([run(1, 0.9), run(2, 0.5)])))


def test_importing_the_renderers_does_not_import_matplotlib():
    code = "import sys, scaling.report.render; sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
