"""The report on a terminal of 80 columns, in a pipe, and on a terminal that supports only ASCII."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.report.render import render_html, render_markdown
from nodesweep.scaling.report.tables.cells import hidden_node_counts, hidden_note
from nodesweep.scaling.report.tables.fits import extrapolation_text
from nodesweep.scaling.report.tables.summary import brief_table
from nodesweep.scaling.report.terminal import MAX_BARS, Bar, SpeedupBars, render_terminal

REFERENCE = "nodes,train_seconds,instance_type\n" + "".join(
    f"{nodes},{minutes * 60},ml.p3.16xlarge\n"
    for nodes, minutes in ((1, 99), (2, 55), (4, 27), (8, 13.5))
)


def printed(shown: ScalingReport | SpeedupBars, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    Console(width=width, file=stream).print(
        render_terminal(shown) if isinstance(shown, ScalingReport) else shown
    )
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def bars(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r" +\d+ [█#]", line)]


def test_reference_is_printed_as_its_source_does(make_report, snapshot):
    text = printed(make_report(read_measured(REFERENCE)))
    assert re.findall(r"\d\.\dx", text)[:3] == ["1.8x", "3.7x", "7.3x"]
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert text == snapshot


def test_bars_show_the_speedup_and_what_is_missing_to_the_ideal(make_outcomes, make_report):
    lines = bars(printed(make_report(make_outcomes({1: 80, 2: 40, 4: 40, 8: 20}))))
    counts = [(line.count("█"), line.count("░")) for line in lines]
    assert counts == [(8, 0), (15, 0), (15, 15), (30, 30)]
    assert lines[2].endswith("2.0x of 4.0x")


def test_a_superlinear_bar_is_longer_than_the_ideal(make_outcomes, make_report):
    lines = bars(printed(make_report(make_outcomes({1: 80, 2: 20}))))
    assert [(line.count("█"), line.count("░")) for line in lines] == [(15, 0), (60, 0)]


def test_interval_of_the_speedup_is_in_the_table(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: [40, 41, 42], 2: [20, 20.5, 21]}))
    assert "2.0x [1.9x, 2.1x]" in printed(report)
    assert brief_table(report).caption == snapshot


def test_caption_says_the_batch_policy(make_outcomes, make_report, snapshot):
    report = make_report(make_outcomes({1: 40, 2: 21}, batch_policy="fixed_global"))
    caption = brief_table(report).caption
    assert caption == snapshot
    assert caption in " ".join(printed(report).split())


def test_caption_explains_only_intervals_that_are_shown(make_outcomes, make_report):
    """T(1) has an interval, which a terminal has no room for; S(2) from one run has none."""
    text = printed(make_report(make_outcomes({1: [40, 41, 42], 2: 20})))
    assert "[low, high]" not in text and "[40.0 s" not in text


def test_hidden_node_counts_are_said_and_the_last_is_there(make_outcomes, make_report):
    report = make_report(make_outcomes({nodes: 1e4 / nodes for nodes in range(1, 131)}))
    text = printed(report)
    assert hidden_node_counts(report) == 30
    assert hidden_note(report) in " ".join(text.split())
    assert re.search(r"^ +130 +1 ", text, re.M)


def test_narrow_terminals_and_ascii_ones_are_served(make_outcomes, make_report):
    narrow = bars(printed(make_report(make_outcomes({1: 80, 2: 50}, instance_type="m5")), width=40))
    assert len(narrow) == 2 and max(map(len, narrow)) <= 40
    plain = bars(
        printed(SpeedupBars("Speedup", [Bar(1, 1.0, 1.0), Bar(2, 1.5, 2.0)]), encoding="ascii")
    )
    assert plain == [f" 1 {'#' * 30:<60} 1.0x of 1.0x", f" 2 {'#' * 45 + '.' * 15} 1.5x of 2.0x"]


def test_many_node_counts_draw_a_bounded_number_of_bars(make_outcomes, make_report):
    text = printed(make_report(make_outcomes({nodes: 1e4 / nodes for nodes in range(1, 60)})))
    assert len(bars(text)) == MAX_BARS


def test_without_two_points_there_are_no_bars(make_outcomes, make_outcome, make_report):
    assert bars(printed(make_report(make_outcomes({1: 80})))) == []
    assert bars(printed(make_report([make_outcome(1)]))) == []


def test_markup_in_values_is_not_read(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}, instance_type="[bold]x[/nothing]"))
    text = printed(report.model_copy(update={"headline": "[bold]x[/bold] [/nothing]"}), 100)
    assert "[bold]x[/bold] [/nothing]" in text and "(AWS, [bold]x[/nothing])" in text


def test_every_caveat_is_printed(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}))
    text = " ".join(printed(report).split())
    assert report.caveats and all(f"- {caveat}" in text for caveat in report.caveats)


def test_a_supported_prediction_is_printed_with_its_interval(make_outcomes, make_report, snapshot):
    times = {n: 100 * (1 + 0.02 * (n - 1)) / n for n in (1, 2, 4, 8)}
    report = make_report(make_outcomes({n: [t * 0.999, t, t * 1.001] for n, t in times.items()}))
    text = " ".join(printed(report).split())
    prediction = extrapolation_text(report)
    assert prediction == snapshot
    assert f"- {prediction}" in text
    unsupported = make_report(make_outcomes(times))
    assert extrapolation_text(unsupported) not in " ".join(printed(unsupported).split())


def test_the_terminal_says_for_which_values_of_an_hour_each_count_is_the_best(
    make_report, snapshot
):
    table = "nodes,train_seconds,cost_usd\n1,7200,10\n2,3600,12\n4,1800,15\n"
    (line,) = [
        line
        for line in printed(make_report(read_measured(table)), width=250).splitlines()
        if line.startswith("- Value of time")
    ]
    assert line.rstrip() == snapshot


def test_mfu_is_in_every_table_where_it_is_known(make_outcome, make_report):
    runs = [
        make_outcome(
            nodes,
            seconds,
            instance_type="ml.p3.16xlarge",
            world_size=8 * nodes,
            metrics={
                "train_seconds": seconds,
                "steps": 50,
                "flops": {"per_step": 50 * 10**12, "dtype": "float16"},
            },
        )
        for nodes, seconds in ((1, 5940.0), (2, 3300.0), (4, 1620.0), (8, 810.0))
    ]
    report = make_report(runs)
    text = printed(report)
    assert max(len(line) for line in text.splitlines()) <= 80
    for shown in (text, render_markdown(report), render_html(report)):
        assert "MFU" in shown
    unknown = make_report([replace(run, metrics={}) for run in runs])
    assert "MFU" not in printed(unknown) + render_markdown(unknown)
