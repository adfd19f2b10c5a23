"""The rule that a node count trains the same model as the baseline, and its t-test compared with
SciPy's."""

from __future__ import annotations

import statistics

import pytest
from scipy.stats import ttest_1samp, ttest_ind

from nodesweep.configs.models import ParityConfig
from nodesweep.scaling.analysis.parity import FinalMetric, Parity, judge_parity


def judge(
    values, base_values, goal="maximize", tolerance=0.02, target=None, base_name="val"
) -> Parity:
    metric = FinalMetric(name="val", value=statistics.median(values), goal=goal)
    base = FinalMetric(name=base_name, value=statistics.median(base_values), goal=goal)
    rule = ParityConfig(tolerance=tolerance, target_metric=target)
    return judge_parity(metric, values, base, base_values, rule)


@pytest.mark.parametrize(
    ("value", "goal", "verdict"),
    [
        (0.94, "maximize", "same"),  # 0.96 - 0.94 is 0.02 but for the last digit
        (0.93, "maximize", "different"),
        (0.99, "maximize", "same"),
        (0.98, "minimize", "same"),
        (0.99, "minimize", "different"),
        (0.90, "minimize", "same"),
        (0.98, None, "same"),
        (0.99, None, "different"),
        (0.93, None, "different"),
        (0.93, "up", "different"),
        (0.99, "up", "different"),
    ],
)
def test_one_run_is_held_against_the_tolerance_in_the_metrics_direction(
    value, goal, verdict, snapshot
):
    judged = judge([value], [0.96], goal)
    assert judged.verdict == verdict
    assert judged.reason == snapshot


def test_two_runs_are_not_tested():
    assert "not tested" in judge([0.95, 0.95, 0.95], [0.96, 0.96]).reason
    assert "not tested" in judge([0.95, 0.95], [0.96, 0.96, 0.96]).reason


@pytest.mark.parametrize(
    ("values", "goal", "target", "verdict"),
    [
        ([0.90], "maximize", 0.90, "reached_target"),
        ([0.89], "maximize", 0.90, "different"),
        ([0.40], "minimize", 0.40, "reached_target"),
        ([1.41], "minimize", 0.40, "different"),
        ([0.90], None, 0.90, "different"),
    ],
)
def test_a_reached_target_counts_whatever_the_baseline(values, goal, target, verdict):
    assert judge(values, [0.98], goal, target=target).verdict == verdict


def test_reason_of_a_reached_target_has_both_numbers(snapshot):
    assert judge([0.951], [0.99], target=0.95).reason == snapshot


def test_without_a_metric_at_the_baseline_parity_is_unknown(snapshot):
    metric, rule = FinalMetric(name="val", value=0.9, goal="maximize"), ParityConfig()
    assert judge_parity(metric, [0.9], None, [], rule).verdict == "unknown"
    assert judge_parity(None, [], None, [], rule).reason == snapshot
    target = ParityConfig(target_metric=0.9)
    assert judge_parity(metric, [0.9], None, [], target).verdict == "reached_target"


def test_a_point_without_the_baselines_metric_is_not_shown_to_be_the_same_model(snapshot):
    base, rule = (
        FinalMetric(name="val", value=0.9, goal="maximize"),
        ParityConfig(target_metric=0.9),
    )
    partial = judge_parity(None, [0.9] * 4, base, [0.9], rule, runs=5)
    assert partial.verdict == "different"
    assert partial.reason == snapshot
    mixed = judge_parity(None, [0.9, 0.4], base, [0.9], rule, runs=2)
    assert mixed.verdict == "different"
    assert mixed.reason == snapshot


def test_another_metric_reaches_no_target(snapshot):
    base = FinalMetric(name="accuracy", value=0.95, goal="maximize")
    loss = FinalMetric(name="loss", value=0.4, goal="minimize")
    judged = judge_parity(loss, [0.4], base, [0.95], ParityConfig(target_metric=0.9))
    assert judged.verdict == "different"
    assert judged.reason == snapshot


SAMPLES = [
    ([0.950, 0.955, 0.948], [0.960, 0.958, 0.963]),
    ([0.91, 0.95, 0.93, 0.96], [0.960, 0.958, 0.963]),
    ([0.97, 0.90, 0.95], [0.93, 0.96, 0.94, 0.99, 0.92]),
    ([0.80, 0.81, 0.82], [0.96, 0.95, 0.97]),
]


@pytest.mark.parametrize(("values", "base_values"), SAMPLES)
@pytest.mark.parametrize("goal", ["maximize", "minimize", None])
def test_p_value_is_that_of_welchs_t_test_against_a_loss_of_the_tolerance(
    values, base_values, goal
):
    """H0: worse than the baseline by 0.02 or more, tested on values shifted by the tolerance."""
    lower = ttest_ind(
        [v + 0.02 for v in values], base_values, equal_var=False, alternative="greater"
    ).pvalue
    higher = ttest_ind(
        [v - 0.02 for v in values], base_values, equal_var=False, alternative="less"
    ).pvalue
    expected = {"maximize": lower, "minimize": higher, None: max(lower, higher)}[goal]
    judged = judge(values, base_values, goal)
    assert f"p = {expected:.2g} ({len(values)} and {len(base_values)} runs)" in judged.reason
    assert judged.verdict == ("same" if expected < 0.05 else "different")


def test_runs_that_vary_too_much_are_not_shown_to_be_the_same():
    # the means, 0.94 and 0.945, are within 0.02, but their spread of 0.05 is not
    assert judge([0.89, 0.94, 0.99], [0.895, 0.945, 0.995]).verdict == "different"
    assert judge([0.939, 0.94, 0.941], [0.944, 0.945, 0.946]).verdict == "same"


@pytest.mark.parametrize(
    ("values", "goal", "verdict"),
    [
        ([0.94] * 3, "maximize", "same"),
        ([0.93] * 3, "maximize", "different"),
        ([0.93] * 3, "minimize", "same"),
        ([0.99] * 3, "minimize", "different"),
        ([0.99] * 3, None, "different"),
        ([0.97] * 3, None, "same"),
    ],
)
def test_runs_that_do_not_vary_are_held_against_the_tolerance(values, goal, verdict):
    assert judge(values, [0.96] * 3, goal).verdict == verdict


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_tiny_and_huge_metrics_are_tested_all_the_same(scale):
    values, base_values = (
        [1.00 * scale, 1.01 * scale, 1.02 * scale],
        [1.01 * scale, 1.02 * scale, 1.03 * scale],
    )
    judged = judge(values, base_values, tolerance=0.05 * scale)
    assert judged.verdict == "same"
    # The same test at scale 1: t = (0.01 - 0.05)/0.00816 = -4.9 at 4 degrees of freedom
    assert "p = 0.004 " in judged.reason
    assert judge(base_values, values, "minimize", tolerance=0).verdict == "different"


def test_one_side_without_variance_is_tested_by_the_others(snapshot):
    # Standard error 0.01/sqrt(3) at 2 degrees of freedom: t = -0.03/0.00577 = -5.2
    assert judge([0.96, 0.97, 0.98], [0.96] * 3).reason == snapshot


SEEDED = [0.797, 0.688, 0.666, 0.861, 0.844]  # one per seed: seeds differ more than node counts


def judge_seeded(values, base_values, goal="maximize") -> Parity:
    """Judge the repeats that two counts have in common, one by one."""
    base = FinalMetric(name="val", value=statistics.median(base_values), goal=goal)
    metric = FinalMetric(name="val", value=statistics.median(values), goal=goal)
    pairs = list(zip(values, base_values, strict=False))
    return judge_parity(
        metric, values, base, base_values, ParityConfig(tolerance=0.02), None, pairs
    )


def test_repeats_of_one_seed_are_compared_with_each_other(snapshot):
    values = [value - 0.002 * number for number, value in enumerate(SEEDED)]
    judged = judge_seeded(values, SEEDED)
    lost = [base - value for value, base in zip(values, SEEDED, strict=True)]
    p_value = ttest_1samp(lost, 0.02, alternative="less").pvalue
    assert judged.verdict == "same"
    assert judged.reason.endswith(f"p = {p_value:.2g}")
    assert judged.reason == snapshot
    # the seeds alone hide it from a test of all against all
    assert judge(values, SEEDED).verdict == "different"


def test_a_loss_in_every_repeat_is_found():
    assert judge_seeded([value - 0.05 for value in SEEDED], SEEDED).verdict == "different"
    assert judge_seeded([value + 0.05 for value in SEEDED], SEEDED).verdict == "same"
    assert judge_seeded([value + 0.05 for value in SEEDED], SEEDED, "minimize").verdict == (
        "different"
    )
    assert judge_seeded([value + 0.05 for value in SEEDED], SEEDED, None).verdict == "different"


def test_of_a_few_repeats_only_those_that_both_have_are_compared(snapshot):
    judged = judge_seeded(SEEDED[:2], SEEDED)
    assert judged.verdict == "same"
    assert judged.reason == snapshot
