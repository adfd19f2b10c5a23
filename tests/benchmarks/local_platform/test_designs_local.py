"""The benchmark of the designs on this machine: the result computed from its sweeps' reports."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.local_platform.designs import (
    CONFIG,
    failures,
    line,
    node_seconds,
    replayed,
    settings_of,
    summarise,
)
from nodesweep.configs.load import load_config

OPTIONS = Namespace(batch=8192, epochs=4, repeats=3, precision=0.02, min_efficiency=0.6)


def point(nodes: int, billable: float | None, **more: Any) -> dict[str, Any]:
    clocks = {"billable_seconds": billable, "train_seconds": billable and billable / 2}
    return {"nodes": nodes, "clocks": clocks} | more


def report(nodes: int, points: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    rows = [
        {"nodes": count, "clocks": {"train": {"seconds": seconds}}, "flags": []}
        for count, seconds in ((1, 60.0), (8, None))
    ]
    chosen = {"chosen": {"nodes": nodes}}
    return {"recommendation": chosen, "points": points, "summary": rows, "wall_seconds": 9.0} | more


CHECK = {"difference": 0.012, "error_seconds": 0.2, "projected_seconds": 10.0}


def test_shares_are_of_the_full_designs_node_seconds() -> None:
    full = report(8, [point(1, 100.0), point(8, 20.0), point(8, None)])
    assert node_seconds(full) == 260.0
    own = point(8, 6.5, projection={"measured_seconds": 1.3})
    probe = summarise("probe", report(8, [own], check=CHECK), full)
    assert (probe.share, probe.keeps_share, probe.recommended) == (0.2, True, 8)
    assert (probe.trained_node_seconds, probe.trained_share) == (10.4, 0.08)
    assert probe.train_seconds == {1: 60.0}
    assert line(probe).endswith("1: 60  check +1.2% (error ± 2.0%)")


def test_another_answer_and_a_larger_share_are_missed() -> None:
    whole = report(8, [point(8, 10.0)])
    full = summarise("full", whole, whole)
    same = summarise("sequential", report(8, [point(8, 6.0)]), whole)
    assert failures([full, same]) == []
    other = replace(same, recommended=4, share=0.61)
    first, second = failures([full, other])
    assert "recommends 4, " in first and first.endswith(" 8")
    assert "61.0%" in second and "60%" in second
    nothing = summarise("probe", report(8, [], recommendation=None), whole)
    assert nothing.recommended is None


def test_the_sequential_rule_is_played_with_the_full_designs_runs() -> None:
    """At 96 % efficiency and hardly any noise 2 nodes pass 75 % after two runs of each."""
    runs = [
        {**point(nodes, seconds), "repeat": repeat}
        for nodes, seconds in ((1, 96.0), (2, 50.0))
        for repeat in (1, 2, 3)
    ]
    lost = {**point(2, None), "repeat": 4}
    told = replayed({"points": [*runs, lost]}, 0.75)
    assert (told["jobs"], told["share"]) == (4, round(4 / 6, 4))
    [answer] = told["answers"]
    assert answer.startswith("2 nodes pass: ") and " 96" in answer


@pytest.mark.parametrize("design", ["full", "sequential", "probe"])
def test_the_settings_make_a_config(design: str) -> None:
    settings = settings_of(design, OPTIONS)
    overrides = [f"{name}={value}" for name, value in settings.items()]
    config = load_config(CONFIG, overrides)
    assert config.sweep.design == design
    assert config.report.recommendation.min_efficiency == 0.6
    assert config.training.batch is not None and config.training.batch.size == 8192
