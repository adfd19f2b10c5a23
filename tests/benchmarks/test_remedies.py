"""The comparison of benchmarks/remedies.py, without nodes."""

from __future__ import annotations

import pytest

from benchmarks.remedies import CASES, Case, Ran, check
from tests.nodesweep.scaling.analysis.test_step_budget import metrics, rank


def ran(nodes: int, repeat: int, phase: str, **parts: float) -> Ran:
    seconds = sum(parts.values())
    written = metrics(*(rank(each, **parts) for each in range(nodes)))
    return Ran(nodes, repeat, phase, {**written, "train_seconds": seconds}, 0.5)


def runs(repeats: int) -> list[Ran]:
    """Return runs whose communication at 2 nodes takes 1 of 6 s; with 16-bit gradients T is
    5.45 s."""
    made = []
    for repeat in range(1, repeats + 1):
        noise = repeat / 1000
        for phase, communication in (("before", 1.0), ("after", 0.45)):
            made.append(ran(1, repeat, phase, forward=10.0 + noise))
            made.append(ran(2, repeat, phase, forward=5.0, communication=communication + noise))
    return made


@pytest.mark.parametrize(("repeats", "inside"), [(1, None), (3, True)])
def test_a_prediction_is_compared_with_the_run_that_has_the_change(repeats, inside):
    one, two = check("compression", CASES["compression"], runs(repeats))
    assert (one.nodes, one.efficiency_after, one.error) == (1, 1.0, 0.0)
    assert two.seconds_predicted == pytest.approx(5.5, abs=0.01)
    assert two.efficiency_predicted == pytest.approx(10 / 11, abs=0.002)
    assert two.efficiency_after == pytest.approx(10 / 10.9, abs=0.002)
    assert two.error == pytest.approx(10 / 11 - 10 / 10.9, abs=0.002)
    assert (two.is_inside, two.runs) == (inside, repeats)


def test_a_change_that_saves_nothing_is_not_predicted():
    case = Case("loader_workers", "ml.local.small", {"workers": 2})
    for cell in check("none", case, runs(3)):
        assert (cell.efficiency_predicted, cell.error, cell.is_inside) == (None, None, None)
