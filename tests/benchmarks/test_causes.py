"""The cases of benchmarks/causes.py, and their verdicts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.causes import (
    KINDS,
    MEGABYTES,
    PACKAGES,
    STEPS,
    Case,
    Found,
    compare,
    is_good,
    main,
    make_cases,
    points_of,
    read_cells,
    summary,
)
from tests.nodesweep.scaling.analysis.test_step_budget import rank


def said(*ranks: dict[str, Any], **injected: float) -> list[dict[str, Any]]:
    """Return the output of nodes whose ranks have these parts."""
    train = sum(ranks[0]["seconds"].values())
    nodes = []
    for number, each in enumerate(ranks):
        name = f"nodesweep-budget-{number}.json" if number else "metrics.json"
        world = {"world_size": len(ranks)}
        content = {"train_seconds": train, "world": world, "observed": {}, "budget": [each]}
        nodes.append({"injected": injected, "files": {name: each if number else content}})
    return nodes


def case(kind: str, injected: dict[str, float], instance_type: str = "ml.local.small") -> Case:
    return Case(1, "plain", kind, instance_type, injected)


def test_every_kind_and_framework_is_among_the_cases_and_each_has_a_main_cause() -> None:
    cases = make_cases(300, seed=1)
    pairs = {(each.kind, each.framework) for each in cases}
    assert len(pairs) == len(KINDS) * len(PACKAGES)
    assert [each.number for each in cases] == list(range(300))
    assert cases == make_cases(300, seed=1) != make_cases(300, seed=2)
    for each in cases:
        assert tuple(each.injected) == KINDS[each.kind]
        assert (each.instance_type != "ml.local.small") == ("communication" in each.injected)


def test_a_sleeping_rank_is_compared_with_what_it_slept() -> None:
    one = said(rank(forward=8.0))
    two = said(rank(0, 40, 4.0, forward=4.0), rank(1, 40, 0.0, forward=8.0), waiting=4.0)
    found = Found(1, "plain", "sleeping", "t", {"waiting": 0.1}, **compare(
        case("sleeping", {"waiting": 0.1}), one, two
    ))  # fmt: skip
    assert found.true_points == {"waiting": 0.5}
    assert found.found_points["waiting"] == pytest.approx(0.5)
    assert (found.is_right, found.is_within, found.slowest_node) == (True, True, "algo-2")


def test_a_cause_on_one_node_as_well_counts_half_and_the_network_by_its_line() -> None:
    assert points_of(4.0, 4.0, 10.0) == pytest.approx(0.2)
    one = said(rank(forward=8.0))
    two = said(*(rank(each, 40, 4.0, forward=4.0) for each in range(2)))
    slow = case("network", {"communication": 0.08}, "ml.local.small100m")
    found = compare(slow, one, two)
    line_seconds = MEGABYTES * 8 / 100 * 1514 / 1448
    assert found["true_points"]["communication"] == pytest.approx(STEPS * line_seconds / 8)
    assert found["named"] == ["communication"]


def test_a_run_without_parts_is_wrong_and_says_why() -> None:
    two = said(*(rank(each, forward=4.0) for each in range(2)))
    two[0]["files"]["metrics.json"]["budget"] = None
    two[0]["files"]["metrics.json"]["observed"]["not_split"] = "a reason"
    two[0]["files"]["metrics.json"].pop("budget")
    found = compare(case("clean", {}), said(rank(forward=8.0)), two)
    assert found["named"] == ["none: a reason"]
    assert not Found(1, "plain", "clean", "t", {}, **found).is_right


def judged(**changes: Any) -> Found:
    facts = {"number": 1, "framework": "plain", "kind": "", "instance_type": "t", "injected": {}}
    return Found(**{**facts, **changes})


def test_limits_decide() -> None:
    clean = [judged(number=each) for each in range(20)]
    wrong = judged(true_points={"data": 0.3}, found_points={"data": 0.15}, named=["other"])
    right = judged(true_points={"data": 0.3}, found_points={"data": 0.25}, named=["data"])
    contended = judged(named=["compute"], not_counted="contended")
    shares = summary([*clean, contended, right])
    assert shares == {
        "counted": 21,
        "main_cause_right": 1.0,
        "shares_within_10_points": 1.0,
        "clean_without_a_cause": 1.0,
    }
    assert is_good(shares)
    assert not is_good(summary([*clean, right, wrong]))
    assert not is_good(summary([*clean, judged(named=["waiting"]), judged(named=["waiting"])]))
    assert not is_good(summary([contended]))


def test_a_slow_node_must_be_named() -> None:
    facts = {"true_points": {"throttled": 0.5}, "named": ["waiting"]}
    assert judged(**facts, slowest_node="algo-2").is_right
    assert not judged(**facts, slowest_node=None).is_right


def test_an_earlier_output_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "causes.json"
    measured: list[int] = []

    def measure(self: object, cases: list[Case]) -> list[Found]:
        measured.extend(each.number for each in cases)
        return [judged(number=each.number, kind=each.kind) for each in cases]

    monkeypatch.setattr("benchmarks.causes.Nodes.measure", measure)
    monkeypatch.setattr("benchmarks.causes.find_python", lambda name: "python")
    command = ["--only", "clean", "--output", str(output)]
    assert main(["--cases", "11", *command]) == 0
    assert main(["--cases", "31", *command]) == 0
    assert measured == [0, 10, 20, 30]
    assert main(["--cases", "99", "--minutes", "0", *command]) == 0
    assert len(measured) == 4
    cells = read_cells(output, seed=1)
    assert [cell.number for cell in cells] == measured
    assert json.loads(output.read_text())["cells"][1] == asdict(cells[1])
    with pytest.raises(SystemExit):
        read_cells(output, seed=2)
