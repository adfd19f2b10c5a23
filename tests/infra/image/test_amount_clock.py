"""A run with a fixed amount of work: a number of steps, or the steps that take a number of
seconds."""

from __future__ import annotations

from itertools import count

import nodesweep_clock
import pytest
from nodesweep_clock import Amount, clock

from nodesweep.scaling.planning.workload import RUN_SECONDS, RUN_STEPS
from tests.infra.image.test_nodesweep_clock import VARIABLES


def steps_made(amount: Amount, first: float, others: float, rank_0: object = lambda answer: answer):
    """Return the number of steps of a program whose first step takes longer."""
    return next(
        made
        for made in count(1)
        if amount.ends(made, lambda made=made: [first] + [others] * (made - 1), rank_0)
    )


@pytest.mark.parametrize(
    ("first", "others", "steps"),
    [
        (5.0, 3.5, 11),  # 5 + 10 x 3.5
        (30.0, 7.0, 3),  # the least that shows a pace: 30 + 2 x 7
        (90.0, 60.0, 3),
        (0.5, 0.01, 3951),
        (0.1, 0.1, 400),
    ],
)
def test_as_many_steps_as_take_the_seconds_by_the_pace_of_the_first(
    first: float, others: float, steps: int
) -> None:
    assert steps_made(Amount(seconds=40.0), first, others) == steps


def test_given_steps_are_made_and_nobody_is_asked() -> None:
    def refuse(answer: object) -> object:
        raise AssertionError("asked")

    assert steps_made(Amount(steps=12), 1.0, 1.0, refuse) == 12


def test_rank_0_decides_and_all_look_after_the_same_steps() -> None:
    looked: list[int] = []

    def rank_0(answer: int) -> int:
        looked.append(answer)
        return 0 if len(looked) < 3 else 20

    assert steps_made(Amount(seconds=40.0), 9.0, 9.0, rank_0) == 20
    assert looked == [4, 5, 8]  # after 3, 5 and 8 steps, each at least what was made


def test_sweep_and_program_use_the_same_names() -> None:
    assert (RUN_SECONDS, RUN_STEPS) == (nodesweep_clock.RUN_SECONDS, nodesweep_clock.RUN_STEPS)
    assert Amount.from_environment({}) is None
    assert Amount.from_environment({RUN_STEPS: "12"}).steps == 12
    assert Amount.from_environment({RUN_SECONDS: "40"}).steps is None


def test_own_code_leaves_its_loop_after_the_steps_of_the_sweep(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(RUN_STEPS, "7")
    with clock(tmp_path):
        made = next(step for step in range(1, 100) if clock.step(1))
    assert made == 7
