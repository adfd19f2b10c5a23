"""A drift that could change the answer withholds the answer; noise and harmless drifts do not."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.drift import find_drift, unless_drift
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import JobOutcome
from tests.nodesweep.scaling.conftest import summarise

START = datetime(2026, 11, 26, 9, tzinfo=UTC)
TRUE = {1: 3600.0, 2: 1900.0, 4: 1130.0}  # E(4) = 80%, D(4) = 1.68
IN_A_ROW = [1, 1, 1, 2, 2, 2, 4, 4, 4]


def runs_of(
    order: Sequence[int], per_hour: float, noise: float = 0.0, seed: int = 1
) -> list[tuple[int, str, float]]:
    """Return runs one after another on a machine whose times change by exp(per_hour) an hour."""
    generator, at, runs = random.Random(seed), START, []
    for nodes in order:
        hours = (at - START).total_seconds() / 3600
        seconds = TRUE[nodes] * math.exp(per_hour * hours + generator.gauss(0, noise))
        runs.append((nodes, at.isoformat(), seconds))
        at += timedelta(seconds=seconds)
    return runs


def table(order: Sequence[int], per_hour: float, noise: float = 0.0) -> str:
    lines = [",".join(map(str, run)) for run in runs_of(order, per_hour, noise)]
    return "\n".join(["nodes,started_at,train_seconds", *lines])


def chosen(report) -> int | None:
    return report.recommendation.chosen and report.recommendation.chosen.nodes


def test_a_drift_that_changes_the_answer_withholds_it(make_report, snapshot):
    # 4 nodes run about 4 h after the baseline: 10% longer, so E(4) = 72% as measured
    report = make_report(read_measured(table(IN_A_ROW, 0.025, 0.001)))
    assert chosen(report) is None
    assert report.recommendation.not_ruled_out == (2, 4)
    assert report.headline == snapshot
    # without the times nothing shows it
    lines = [line.split(",") for line in table(IN_A_ROW, 0.025, 0.001).splitlines()]
    assert chosen(make_report(read_measured("\n".join(f"{a},{c}" for a, _, c in lines)))) == 2


def test_a_machine_that_gets_faster_flatters_the_counts_that_come_last(make_report, snapshot):
    report = make_report(read_measured(table([4, 4, 4, 2, 2, 2, 1, 1, 1], 0.004, 0.0001)))
    assert (chosen(report), report.headline) == (4, snapshot)
    report = make_report(read_measured(table([4, 4, 4, 2, 2, 2, 1, 1, 1], -0.05, 0.001)))
    assert (chosen(report), report.headline) == (None, snapshot)


def test_a_drift_that_hits_all_counts_alike_changes_nothing(make_report):
    report = make_report(read_measured(table([1, 2, 4, 4, 2, 1, 1, 2, 4, 4, 2, 1], 0.02, 0.001)))
    assert chosen(report) is not None
    assert "during the sweep" not in report.headline


def jobs(order: Sequence[int], per_hour: float, noise: float) -> list[JobOutcome]:
    """Return the same runs as jobs of a sweep on AWS."""
    return [
        replace(each, platform_kind="aws", train_clock="program", is_given=False)
        for each in read_measured(table(order, per_hour, noise))
    ]


def test_a_sweep_has_start_times_as_well(make_report, snapshot):
    report = make_report(jobs(IN_A_ROW, 0.025, 0.001))
    assert chosen(report) is None
    assert report.headline == snapshot


def test_shuffled_passes_need_more_repeats(make_report, make_config, snapshot):
    """The baseline happens to be first in each pass while the machine slows down."""
    config = make_config(sweep={"node_counts": [1, 2, 4], "repeats": 3, "order": "shuffled"})
    report = make_report(jobs([1, 2, 4] * 3, 0.06, 0.0005), config=config)
    assert report.ratio_intervals == "paired"
    assert chosen(report) is None
    assert report.headline == snapshot


def test_a_deadline_that_only_the_later_speed_meets_is_undecided(snapshot):
    rows = summarise(read_measured(table(IN_A_ROW, -0.05, 0.001)))
    runs = [
        (each.nodes, each.created_at, each.clocks.train_seconds)
        for each in read_measured(table(IN_A_ROW, -0.05, 0.001))
    ]
    goals = RecommendationConfig(deadline_seconds=1000)
    answer = recommend(rows, goals)
    assert answer is not None
    assert answer.chosen is not None
    open_ = unless_drift(answer, rows, runs, goals, lambda moved: recommend(moved, goals))
    assert open_ is not None
    assert open_.chosen is None
    assert open_.reason == snapshot
    assert unless_drift(None, rows, runs, goals, lambda _: None) is None


def test_a_deadline_that_only_the_earlier_speed_meets_is_undecided():
    outcomes = read_measured(table(IN_A_ROW, 0.05, 0.001))
    rows = summarise(outcomes)
    goals = RecommendationConfig(deadline_seconds=1300)
    late = recommend(rows, goals)
    assert late is not None and late.chosen is None
    runs = [(each.nodes, each.created_at, each.clocks.train_seconds) for each in outcomes]
    open_ = unless_drift(late, rows, runs, goals, lambda moved: recommend(moved, goals))
    assert open_ is not None
    assert open_.not_ruled_out == (4,)
    assert open_.reason.startswith("Undecided whether 4 nodes can be recommended: runs got slower")


def test_a_withheld_answer_has_no_hour_values_either(make_report):
    def with_costs(per_hour):
        header, *lines = table(IN_A_ROW, per_hour, 0.001).splitlines()
        costs = [f"{line},{number}" for number, line in enumerate(lines, start=1)]
        return make_report(read_measured("\n".join([f"{header},cost_usd", *costs])))

    assert chosen(with_costs(0.025)) is None
    assert with_costs(0.025).hour_values == ()
    assert with_costs(0.0).hour_values


def test_noise_is_no_drift():
    sweeps = [runs_of(IN_A_ROW, 0.0, 0.02, seed) for seed in range(200)]
    assert sum(find_drift(runs) is not None for runs in sweeps) <= 20


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([(1, None, 100.0), (1, None, 110.0), (2, None, 50.0)] * 2, id="no starts"),
        pytest.param([(1, START.isoformat(), 100.0), (2, START.isoformat(), 50.0)], id="few"),
        pytest.param([(1, START.isoformat(), 100.0 + i) for i in range(5)], id="one start"),
        pytest.param([], id="nothing"),
    ],
)
def test_what_shows_no_drift(runs):
    assert find_drift(runs) is None


def test_an_absurd_drift_is_no_overflow(make_report):
    lines = ["nodes,started_at,train_seconds"]
    for nodes in (1, 2):
        for index in range(3):
            at = START + timedelta(seconds=index, days=300 * nodes)
            lines.append(f"{nodes},{at.isoformat()},{10**index / nodes}")
    report = make_report(read_measured("\n".join(lines)))
    assert "nan" not in report.headline
