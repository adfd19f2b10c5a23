"""Times of nodes that got less than half of their CPU are the basis of no recommendation
(docs/method.md, "Attainment")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from tests.nodesweep.scaling.analysis.test_recommend import chosen, runner_up, why_not
from tests.nodesweep.scaling.conftest import summarise

UNKNOWN = (
    "No recommendation, since nodes were contended at {}, where one got less than 50% of the CPU"
    " it requested, and {}"
)


def advise_starved(
    times: Mapping[int, float | Sequence[float]], starved: Sequence[int], **goals: float
) -> Recommendation:
    """Return advice on runs whose nodes were CPU-throttled at these counts; several times of a
    count are repeats."""
    outcomes = [
        JobOutcome(
            nodes=nodes,
            repeat=repeat,
            attempt=1,
            job_name=f"n{nodes}-r{repeat}",
            status="Completed",
            platform_kind="emulated",
            clocks=Clocks(train_seconds=seconds),
            train_clock="program",
            utilisation={"attained_percent": 40.0 if nodes in starved else 99.0},
        )
        for nodes, of_count in times.items()
        for repeat, seconds in enumerate(
            of_count if isinstance(of_count, Sequence) else [of_count], start=1
        )
    ]
    answer = recommend(summarise(outcomes), RecommendationConfig(**goals))
    assert answer is not None
    return answer


def test_a_starved_count_is_never_chosen_nor_rules_out_another(snapshot):
    answer = advise_starved({1: 100, 2: 50, 4: 45, 8: 40}, starved=[8])
    assert (chosen(answer), runner_up(answer)) == (2, 1)
    assert why_not(answer, 8) == snapshot
    assert answer.not_ruled_out == (8,)
    assert answer.reason == snapshot
    # 4 nodes would be no faster than 2, and D = .4: but the time of 2 is no measurement
    answer = advise_starved({1: 100, 2: 20, 4: 25}, starved=[2])
    assert chosen(answer) == 4
    assert chosen(advise_starved({1: 100, 2: 50, 4: 25}, starved=[4], deadline_seconds=30)) is None


@pytest.mark.parametrize("goals", [{}, {"deadline_seconds": 1000}])
@pytest.mark.parametrize(
    "starved",
    [
        [1],
        [1, 8],
        [2, 8],
    ],
)
def test_no_recommendation_rests_on_a_starved_baseline_or_on_one_count_alone(
    starved, goals, snapshot
):
    answer = advise_starved({1: 100, 2: 50, 8: 12}, starved, **goals)
    assert (answer.chosen, answer.runner_up) == (None, None)
    assert answer.reason == snapshot
    assert [choice.nodes for choice in answer.rejected] == [1, 2, 8]


def test_the_fewest_nodes_are_not_best_where_the_next_were_starved(snapshot):
    """8 nodes alone show nothing about 2 and 4 nodes, which may have passed."""
    answer = advise_starved({1: 100, 2: 60, 4: 40, 8: 25}, starved=[2, 4])
    assert (answer.chosen, answer.runner_up) == (None, None)
    assert answer.reason == snapshot
    assert [choice.nodes for choice in answer.rejected] == [1, 2, 4, 8]
    assert why_not(answer, 1) == snapshot
    assert why_not(answer, 8) == snapshot
    # 2 nodes were measured, and don't pay
    assert chosen(advise_starved({1: 100, 2: 90, 4: 40}, starved=[4])) == 1


def test_a_count_is_not_best_where_the_next_were_starved(snapshot):
    answer = advise_starved({1: 100, 2: 52, 4: 31, 8: 30}, starved=[4, 8])
    assert (answer.chosen, answer.runner_up) == (None, None)
    assert answer.reason == snapshot
    assert [choice.nodes for choice in answer.rejected] == [1, 2, 4, 8]
    assert why_not(answer, 2) == snapshot


def test_undecided_counts_before_a_starved_one_make_the_fewest_nodes_no_best_choice(snapshot):
    """On a busy machine the times of 2 nodes vary too much, and 4 and 8 nodes were CPU-throttled,
    so nothing is known."""
    noisy = {1: [100, 101, 99], 2: [50, 70, 95], 4: 30, 8: 25}
    answer = advise_starved(noisy, starved=[4, 8])
    assert (answer.chosen, answer.runner_up) == (None, None)
    assert answer.reason == snapshot
    assert why_not(answer, 1) == snapshot
    assert chosen(advise_starved({**noisy, 4: [90, 91, 92]}, starved=[8])) == 1


def test_a_starved_count_fails_no_limit():
    """Its efficiency of 81% would be above the limit and its doubling ratio below, but neither is
    certain."""
    answer = advise_starved({1: 100, 2: 52, 4: 31}, starved=[4], min_doubling_ratio=1.9)
    starved = answer.judged[-1]
    assert (starved.nodes, starved.answer) == (4, "undecided")
    assert [verdict.criterion for verdict in starved.verdicts] == ["comparable"]


@pytest.mark.parametrize(("same_seeds", "verdict"), [(True, "same"), (False, "different")])
def test_the_model_of_a_starved_run_counts_and_is_compared_with_that_of_its_seed(
    same_seeds: bool, verdict: str
):
    by_seed = {1: 0.90, 2: 0.60, 3: 0.80}
    outcomes = [
        JobOutcome(
            nodes=nodes,
            repeat=repeat,
            attempt=1,
            job_name=f"n{nodes}-r{repeat}",
            status="Completed",
            platform_kind="emulated",
            clocks=Clocks(train_seconds=100 / nodes),
            train_clock="program",
            metrics={
                "final_metric": {
                    "name": "accuracy",
                    "value": accuracy - nodes * 1e-4 * repeat,
                    "goal": "maximize",
                }
            },
            utilisation={"attained_percent": 40.0 if (nodes, repeat) == (2, 2) else 99.0},
        )
        for nodes in (1, 2)
        for repeat, accuracy in by_seed.items()
    ]
    rows, _ = summarise_runs(outcomes, same_seeds=same_seeds)
    assert (rows[1].n, rows[1].parity.verdict) == (2, verdict)
    assert rows[1].final_metric is not None
    assert rows[1].final_metric.value == pytest.approx(0.80 - 2 * 3e-4)


@pytest.mark.parametrize("goals", [{"deadline_seconds": 50.0}, {"hour_value_usd": 5.0}])
def test_a_contended_baseline_and_other_models_leave_nothing_to_recommend(goals):
    outcomes = [
        JobOutcome(
            nodes=nodes,
            repeat=1,
            attempt=1,
            job_name=f"n{nodes}-r1",
            status="Completed",
            platform_kind="emulated",
            clocks=Clocks(train_seconds=100 / nodes),
            train_clock="program",
            given_cost_usd=2.0,
            metrics={"final_metric": {"name": "loss", "value": nodes**2, "goal": "minimize"}},
            utilisation={"attained_percent": 40.0 if nodes == 1 else 99.0},
        )
        for nodes in (1, 2, 4)
    ]
    answer = recommend(summarise(outcomes), RecommendationConfig(**goals))
    assert answer is not None
    assert answer.chosen is None
    assert answer.reason == UNKNOWN.format(
        "1 node", "the other node counts trained a different model."
    )
