"""points.csv has a row per attempt, exact numbers, and nothing that a spreadsheet would execute."""

from __future__ import annotations

import csv
import io
import json

import pytest

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.points_csv import render_csv
from nodesweep.scaling.report.render import render_json


def rows_of(report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv(report))))


def test_a_row_per_attempt_with_every_clock_and_cost(make_outcome, make_report):
    done = make_outcome(
        2,
        40.0,
        clocks=Clocks(train_seconds=40.0, billable_seconds=50.0),
        phases={"Training": 41.5},
        world_size=4,
    )
    price = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6)
    rows = rows_of(make_report([done, make_outcome(4)], price=price))
    assert [row["status"] for row in rows] == ["Completed", "Failed"]
    first = rows[0]
    assert (first["train_seconds"], first["billable_seconds"], first["phases_Training"]) == (
        "40.0",
        "50.0",
        "41.5",
    )
    assert (first["run_usd"], first["on_demand_usd"], first["world_size"]) == ("0.1", "0.1", "4")
    assert (rows[1]["train_seconds"], rows[1]["phases_Training"], rows[1]["run_usd"]) == (
        "",
        "",
        "",
    )
    assert {
        "submit_to_end_seconds",
        "steady_step_seconds",
        "samples_padded",
        "steady_steps",
        "device_type",
    } <= set(first)
    assert "log_tail" not in first and len(first) == len(set(first))


@pytest.mark.parametrize(
    ("kind", "label"),
    [("aws", "AWS, ml.m5.xlarge"), ("emulated", "emulated nodes, ml.m5.xlarge")],
)
def test_each_row_says_what_its_nodes_were(kind, label, make_outcome, make_report):
    done, failed = make_outcome(2, 40.0, platform_kind=kind), make_outcome(4, platform_kind=kind)
    rows = rows_of(make_report([done, failed]))
    assert [(row["platform_kind"], row["platform"]) for row in rows] == [(kind, label)] * 2


def test_parts_of_a_run_have_their_prefix(make_outcome, make_report):
    metrics = {
        "final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"},
        "samples": {"padded": 3},
        "device": {"type": "cuda"},
    }
    rows = rows_of(make_report([make_outcome(1, 40.0, metrics=metrics), make_outcome(2, 21.0)]))
    assert [row["final_metric_value"] for row in rows] == ["0.9", ""]
    assert (rows[0]["final_metric_name"], rows[0]["samples_padded"], rows[0]["device_type"]) == (
        "accuracy",
        "3",
        "cuda",
    )


FULL_WIDTH = ["\uff1dHYPERLINK(1)", "\uff0b1", "\uff0d1", "\uff20SUM(A1)"]
"""＝, ＋, － and ＠, which a spreadsheet in Japanese takes for the plain signs."""


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("x")', "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", *FULL_WIDTH]
)
def test_formulas_are_defused_and_numbers_are_not(text, make_outcome, make_report):
    metrics = {"final_metric": {"name": text, "value": -0.5, "goal": None}}
    rows = rows_of(
        make_report([make_outcome(1, 40.0, metrics=metrics), make_outcome(2, reason=text)])
    )
    assert rows[1]["reason"] == f"'{text}"
    assert rows[0]["final_metric_name"] == f"'{text}"
    assert rows[0]["final_metric_value"] == "-0.5"


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("a;=cmd|' /C calc'!A0", "a;'=cmd|' /C calc'!A0"),
        ("a; =1", "a; '=1"),
        ("a;\uff1d1", "a;'\uff1d1"),
        ("a\t+1", "a\t'+1"),
        ("a\n@SUM(A1)", "a\n'@SUM(A1)"),
        ('a";"=1', 'a";"\'=1'),
        ("=1;=2", "'=1;'=2"),
        ("loss=1, a@b.example, 3-4", "loss=1, a@b.example, 3-4"),
        ("a; b=1; 2 + 3", "a; b=1; 2 + 3"),
    ],
)
def test_a_formula_after_a_separator_is_defused(text, harmless, make_outcome, make_report):
    """Some locales split a row at semicolons, and no quote of ours holds there."""
    rows = rows_of(make_report([make_outcome(1, 40.0), make_outcome(2, reason=text)]))
    assert rows[1]["reason"] == harmless


def test_a_phase_named_like_a_formula_makes_a_harmless_heading(make_outcomes, make_report):
    text = render_csv(make_report(make_outcomes({1: 40}, phases={"=1": 2.0})))
    assert "phases_=1" in text.splitlines()[0]


def test_progress_bars_in_a_reason_stay_in_their_cell(make_outcomes, make_outcome, make_report):
    rows = rows_of(
        make_report([*make_outcomes({1: 40}), make_outcome(2, reason='10 %\r20 %\r\nend, "it"')])
    )
    assert [row["nodes"] for row in rows] == ["1", "2"]
    assert rows[1]["reason"] == '10 %\n20 %\nend, "it"'
    assert (
        render_csv(make_report([*make_outcomes({1: 40}), make_outcome(2, reason="\r=1")])).count(
            "'\n=1"
        )
        == 1
    )


def test_every_row_of_the_largest_table_is_in_the_report(make_report):
    table = "nodes,train_seconds\n" + "".join(
        f"{place % 8 + 1},{100 + place / 7}\n" for place in range(5_000)
    )
    report = make_report(read_measured(table))
    assert [len(report.points), sum(row.n for row in report.summary)] == [5_000, 5_000]
    assert len(json.loads(render_json(report))["points"]) == len(rows_of(report)) == 5_000
