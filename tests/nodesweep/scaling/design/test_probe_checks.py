"""The counts that full runs validate in a probe sweep, and the consequences if they contradict
it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.design.probe_checks import contradiction
from nodesweep.scaling.design.progress import is_complete, progress_of
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.outcome.projection import ProjectedPart
from nodesweep.scaling.report.render import render_markdown
from tests.nodesweep.scaling.conftest import outcome, projection

# E(2) = 0.61, as projected from probes within a cold first epoch; truly it is 0.86.
COLD = {1: 100.0, 2: 82.0, 4: 60.0}
WHOLE = {1: 101.0, 2: 58.1, 4: 45.0}
PAYING = {1: 100.0, 2: 60.0, 4: 45.0}
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3600.0)


def probed(seconds, repeats=1, **changes):
    """Return probes that project these times at each count."""
    return [
        outcome(
            nodes,
            each,
            repeat,
            train_clock="projected",
            train_seconds_by={"projected": each},
            projection=projection(each).model_copy(update=changes),
            clocks=Clocks(train_seconds=each, billable_seconds=30.0, submit_to_end_seconds=40.0),
        )
        for nodes, each in seconds.items()
        for repeat in range(1, repeats + 1)
    ]


def checks(whole, at, repeat=2):
    return [whole(nodes, WHOLE[nodes], repeat) for nodes in at]


def test_the_count_whose_rejection_decides_is_validated_too(probe_config, whole, snapshot):
    config, probes = probe_config(), probed(COLD)
    progress = progress_of(config, probes)
    assert progress.next_points == ((1, 2), (2, 2))
    assert progress.deciding == 2
    assert progress.reason == snapshot
    one = progress_of(config, [*probes, *checks(whole, [1])])
    assert one.next_points == ((2, 2),)
    done = progress_of(config, [*probes, *checks(whole, [1, 2])])
    assert done.next_points == () and done.points[-2:] == ((1, 2), (2, 2))


def test_the_largest_count_was_preferred_to_none_that_was_rejected(probe_config, probes):
    progress = progress_of(probe_config(), probes([(1, 1), (2, 1), (4, 1)]))
    assert (progress.next_points, progress.deciding) == (((4, 2),), None)


@pytest.mark.parametrize(
    ("goals", "chosen", "deciding"),
    [
        ({"deadline_seconds": 110}, 2, 1),  # waited for, 40 s and 0.9 T: 1 node is too slow
        ({"deadline_seconds": 1000}, 1, 2),
        ({"hour_value_usd": 0.01}, 1, 2),
        ({"hour_value_usd": 9e6}, 4, 2),
    ],
)
def test_what_decides_under_other_rules(make_config, goals, chosen, deciding):
    """There are three probes each, since a single probe leaves a deadline undecided."""
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 3},
        report={"recommendation": goals},
        training={"instance_type": "ml.m5.xlarge"},
    )
    progress = progress_of(config, probed(PAYING, repeats=3))
    assert progress.next_points == ((chosen, 4), (deciding, 4))


@pytest.mark.parametrize(
    ("at_one", "at_two", "chosen"),
    [(100.0, 60.0, 2), (70.0, 60.0, None), (100.0, 80.0, None)],
)
def test_a_full_run_meets_a_deadline_by_its_own_time(
    make_config, whole, make_report, at_one, at_two, chosen
):
    """Of 110 s, with 40 s and 0.9 T as projected: 130 s of 1 node, 94 s of 2. The full run of 1
    node meets it in the second case, that of 2 nodes misses it in the third.
    """
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 3},
        report={"recommendation": {"deadline_seconds": 110}},
    )
    runs = [whole(1, at_one, 4), whole(2, at_two, 4)]
    report = make_report([*probed(PAYING, repeats=3), *runs], config=config, price=PRICE)
    choice = report.recommendation.chosen
    assert (None if choice is None else choice.nodes) == chosen


def test_one_count_that_meets_a_deadline_leaves_none_to_validate(make_config):
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 4], "repeats": 1},
        report={"recommendation": {"deadline_seconds": 1000, "budget_usd_per_run": 0.01}},
    )
    assert progress_of(config, probed({1: 100.0, 4: 90.0})).next_points == ((1, 2),)


def test_a_rejected_count_alone_is_validated_where_the_answer_was_measured(
    probe_config, whole, make_report, snapshot
):
    """The probes at 1 node made all of their steps."""
    measured = whole(1, 100.0, 1, train_seconds_by={"program": 100.0, "projected": 100.0})
    probes = [measured, *probed({2: 82.0, 4: 60.0})]
    progress = progress_of(probe_config(), probes)
    assert progress.next_points == ((2, 2),) and progress.deciding == 2
    assert progress.reason == snapshot
    report = make_report([*probes, whole(2, 58.1)], config=probe_config())
    assert report.check is None and [each.nodes for each in report.other_checks] == [2]
    assert report.recommendation.chosen is None
    agrees = make_report([*probes, whole(2, 81.0)], config=probe_config())
    assert agrees.recommendation.chosen.nodes == 1


def test_a_cold_first_epoch_does_not_reject_a_count_that_pays_off(
    probe_config, whole, make_report, snapshot
):
    """The full run on 1 node alone confirms the wrong answer."""
    config = probe_config()
    confirmed = make_report([*probed(COLD), *checks(whole, [1])], config=config)
    assert confirmed.recommendation.chosen.nodes == 1
    assert not is_complete(config, confirmed)
    assert confirmed.caveats == snapshot
    report = make_report([*probed(COLD), *checks(whole, [1, 2])], config=config, price=PRICE)
    assert report.recommendation.chosen is None
    assert report.recommendation.runner_up is None
    assert [choice.nodes for choice in report.recommendation.rejected] == [1, 2, 4]
    assert report.headline == snapshot
    assert report.caveats == snapshot
    assert is_complete(config, report)
    assert type(report).model_validate(report.model_dump(mode="json")) == report
    assert render_markdown(report) == snapshot


def test_an_evaluation_that_no_probe_saw_does_not_recommend_the_largest_count(
    probe_config, probes, whole, make_report, snapshot
):
    """T(4) is 21 s as projected and 30 s in truth: an efficiency of 67%."""
    report = make_report([*probes([(1, 1), (2, 1), (4, 1)]), whole(4, 30.0)], config=probe_config())
    assert report.recommendation.chosen is None
    assert report.headline == snapshot


def test_full_runs_that_agree_confirm_both(probe_config, whole, make_report, snapshot):
    times = {1: 100.0, 2: 58.0, 4: 45.0}
    report = make_report([*probed(times), *checks(whole, [2, 4])], config=probe_config())
    assert report.recommendation.chosen.nodes == 2
    assert report.check.nodes == 2 and "decides" not in report.check.model_dump()
    assert [(each.nodes, each.decides) for each in report.other_checks] == [(4, True)]
    assert report.headline == snapshot


def test_all_times_that_are_off_alike_change_no_ratio_but_the_baseline_may_not_be(
    probe_config, whole, make_report
):
    """E(2) = 0.86 as projected; a full run of 2 nodes takes 20% longer. If that of 1 node takes as
    long as projected, E(2) is 0.72.
    """
    times = {1: 100.0, 2: 58.0, 4: 45.0}
    runs = [whole(2, 58.0 * 1.2), whole(4, 45.0 * 1.2)]
    report = make_report([*probed(times), *runs], config=probe_config())
    assert report.recommendation.chosen is None
    within = [whole(2, 58.0 * 1.1), whole(4, 45.0 * 1.1)]
    report = make_report([*probed(times), *within], config=probe_config())
    assert report.recommendation.chosen.nodes == 2


def test_a_count_that_failed_attempts_rule_out_is_not_let_in_by_its_time(
    probe_config, whole, make_report, make_outcome
):
    at = "2026-01-01T00:00:00+00:00"
    failed = [make_outcome(2, None, 1, attempt=n, created_at=at) for n in range(2, 11)]
    outcomes = [*probed(COLD), *failed]
    assert progress_of(probe_config(), outcomes).deciding == 4
    report = make_report([*outcomes, *checks(whole, [1, 2])], config=probe_config(), price=PRICE)
    assert report.recommendation.chosen.nodes == 1


def test_intervals_of_three_probes_are_contradicted_too(probe_config, whole, make_report):
    probes = probed(COLD, repeats=3)
    report = make_report([*probes, *checks(whole, [1, 2], 4)], config=probe_config(repeats=3))
    assert report.recommendation.chosen is None


def test_an_undecided_count_needs_no_full_run_to_stay_undecided(
    probe_config, make_config, whole, make_report
):
    """Without a recommendation, there is nothing to confirm."""
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 1},
        report={"recommendation": {"deadline_seconds": 1}},
    )
    report = make_report([*probed(COLD), *checks(whole, [2])], config=config)
    assert report.recommendation.chosen is None and report.check is None


def lacking(*names):
    return tuple(
        ProjectedPart(name=name, left_out=5, seconds_each=None, error_seconds=None)
        for name in names
    )


def notes_of(make_report, probe_config, outcomes):
    caveats = make_report(outcomes, config=probe_config()).caveats
    return [each for each in caveats if "by the probes at" in each or each.startswith("Trend")]


def test_what_the_probes_never_saw_is_named(make_report, probe_config, snapshot):
    seen = {"epochs_seen": 0, "checkpoints_seen": 0, "validations_seen": 0}
    blind = probed(COLD, parts=lacking("epochs", "checkpoints", "validations"), **seen)
    assert notes_of(make_report, probe_config, blind) == snapshot
    only = [*probed({1: 100.0}, **seen), *probed({2: 82.0}, parts=lacking("epochs"), **seen)]
    assert notes_of(make_report, probe_config, only) == snapshot
    assert notes_of(make_report, probe_config, probed(COLD, **seen)) == []


def test_probes_that_do_not_report_their_epochs_are_named(make_report, probe_config, snapshot):
    silent = probed(COLD, epochs_seen=None)
    assert notes_of(make_report, probe_config, silent) == snapshot


@pytest.mark.parametrize("trend", [0.08, -0.3])
def test_a_trend_in_the_steps_is_a_caveat(make_report, probe_config, snapshot, trend):
    outcomes = probed({1: 100.0, 2: 82.0})
    trending = probed({4: 60.0}, step_trend=trend)
    assert notes_of(make_report, probe_config, [*outcomes, *trending]) == snapshot
    small = probed({4: 60.0}, step_trend=trend / 100)
    assert notes_of(make_report, probe_config, [*outcomes, *small]) == []


def test_one_of_three_probes_with_a_trend_is_chance(make_report, probe_config):
    calm = probed({1: 100.0, 2: 82.0}, repeats=3)
    trends = [0.05, 0.0, None]
    of_four = [
        replace_trend(each, trend)
        for each, trend in zip(probed({4: 60.0}, repeats=3), trends, strict=True)
    ]
    assert notes_of(make_report, lambda: probe_config(repeats=3), [*calm, *of_four]) == []


def replace_trend(each, trend):
    changed = each.projection.model_copy(update={"step_trend": trend})
    return replace(each, projection=changed)


def test_where_nothing_can_be_judged_again_nothing_is_contradicted(probe_config, whole):
    config = probe_config()
    outcomes = [*probed(COLD), *checks(whole, [1, 2])]
    rows, runs = summarise_runs(outcomes)
    check, others = design_of(config.sweep).find_checks(config, runs, progress_of(config, outcomes))
    answer = recommend(rows, config.report.recommendation)
    assert contradiction(answer, None, [check, *others]) is None


def test_the_runner_up_that_a_full_run_makes_the_cheapest_is_an_answer(
    make_config, whole, make_report
):
    """Both meet the deadline; 2 nodes are projected at 2 x 94 s and took 50 s less each."""
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2, 4], "repeats": 1},
        report={"recommendation": {"deadline_seconds": 1000}},
        training={"instance_type": "ml.m5.xlarge"},
    )
    probes = probed(PAYING)
    report = make_report([*probes, whole(1, 100.0), whole(2, 10.0)], config=config, price=PRICE)
    assert report.recommendation.chosen is None
    alike = make_report([*probes, whole(1, 100.0), whole(2, 59.0)], config=config, price=PRICE)
    assert alike.recommendation.chosen.nodes == 1


def test_a_larger_count_that_is_undecided_is_not_validated(probe_config):
    """E(4) is 0.75 to within what three probes show; it is named as open anyway."""
    probes = [
        *probed({1: 100.0, 2: 52.0}, repeats=3),
        *(
            replace(each, repeat=repeat)
            for repeat, seconds in enumerate((30.0, 33.5, 36.0), start=1)
            for each in probed({4: seconds})
        ),
    ]
    progress = progress_of(probe_config(repeats=3), probes)
    assert progress.next_points == ((2, 4),)
