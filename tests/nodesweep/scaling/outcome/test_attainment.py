"""The limit of the attained share (docs/method.md, "Attainment")."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from nodesweep.scaling.outcome.attainment import (
    LEAST_ATTAINED,
    MOST_EFFICIENCY_ERROR,
    format_attained,
    format_least_attained,
    is_contended,
)


@dataclass(frozen=True)
class Run:
    """A run and the CPU shares that its nodes attained."""

    utilisation: dict[str, float] = field(default_factory=dict)


def worst_error(least: float) -> float:
    """Return the largest error of the efficiency where runs attained `least` or more, over all true
    efficiencies up to 1."""
    shares = [least + (1 - least) * step / 20 for step in range(21)]
    return max(
        abs(efficiency * of_n / of_baseline - efficiency)
        for efficiency in (0.3, 0.7, 1.0)
        for of_n in shares
        for of_baseline in shares
    )


def test_at_the_limit_the_efficiency_is_off_by_the_most_that_is_allowed_and_below_it_by_more():
    assert worst_error(LEAST_ATTAINED) == pytest.approx(MOST_EFFICIENCY_ERROR)
    assert worst_error(LEAST_ATTAINED - 0.001) > MOST_EFFICIENCY_ERROR + 0.001


@pytest.mark.parametrize(
    ("percent", "starved"), [(100.0, False), (95.3, False), (95.2, True), (40.0, True)]
)
def test_a_run_below_the_limit_is_starved(percent: float, starved: bool):
    assert is_contended(Run({"attained_percent": percent})) is starved


def test_what_is_not_known_is_not_held_against_a_run():
    assert not is_contended(Run())


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "–"), (1.0, "100%"), (0.987, "98%"), (0.9599, "95.9%"), (0.9523, "95.2%")],
)
def test_a_share_is_shown_so_that_it_can_be_told_from_the_limit(share: float | None, shown: str):
    assert format_attained(share) == shown
    assert format_least_attained() == "95.3%"
