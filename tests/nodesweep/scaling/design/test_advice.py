"""The report of a sequential sweep: its answers, their error rate, and the runs that it saved."""

from __future__ import annotations

import pytest

from nodesweep.scaling.report.render import render_markdown

COUNTS = (1, 2, 4, 8)
REFERENCE = {1: 99.0, 2: 55.0, 4: 27.0, 8: 13.5}
KNEE = {1: 99.0, 2: 51.0, 4: 26.0, 8: 22.5}
WAVES = {1: 0.99, 2: 1.02, 3: 1.0, 4: 0.985, 5: 1.015}
PROMISE = "the sequential design's error rate is at most 5% per sweep"


@pytest.fixture
def config(make_config):
    return make_config(sweep={"design": "sequential", "node_counts": list(COUNTS), "repeats": 3})


@pytest.fixture
def report_of(config, make_outcome, make_report):
    """Return the report of a sweep that ran these points, as in report_of(curve, points, noise)."""

    def make(curve, points, noise=1.0, with_config=config, **changes):
        outcomes = [
            make_outcome(
                nodes,
                curve[nodes] * WAVES[repeat] ** (noise * (-1 if nodes in (2, 8) else 1)),
                repeat,
                **changes.get(f"n{nodes}", {}),
            )
            for nodes, repeat in points
        ]
        return make_report(outcomes, config=with_config)

    return make


def runs(**repeats):
    """Return (nodes, repeat) of runs such as n1=2, n8=2; other counts have one run."""
    return [(n, r) for n in COUNTS for r in range(1, repeats.get(f"n{n}", 1) + 1)]


def test_two_runs_of_each_are_enough_for_an_answer_with_its_promise(report_of, snapshot):
    report = report_of(REFERENCE, runs(n1=2, n4=2, n8=2))
    advice = report.recommendation
    assert (advice.chosen.nodes, advice.basis, advice.larger_may_pass) == (8, "sequential", True)
    assert report.headline == snapshot
    assert PROMISE in report.headline and PROMISE in advice.reason
    assert advice.reason == snapshot

    assert [each.nodes for each in advice.judged] == [1, 8]
    assert {each.nodes: each.reason for each in advice.rejected} == snapshot
    bounds = advice.judged[-1].verdicts[0].interval
    assert bounds.low > 0.75 and bounds.level > 0.95
    assert report.caveats[0] == snapshot
    assert report.caveats == snapshot


def test_a_failed_count_is_named_with_what_it_misses(report_of, snapshot):
    report = report_of(KNEE, runs(n1=2, n2=2, n4=2, n8=2))
    advice = report.recommendation
    assert advice.chosen.nodes == 4 and not advice.larger_may_pass
    assert {each.nodes: each.answer for each in advice.judged} == {1: "pass", 4: "pass", 8: "fail"}
    rejected = {each.nodes: each.reason for each in advice.rejected}
    assert rejected[8] == snapshot
    assert "not measured" not in advice.reason
    text = render_markdown(report)
    assert text == snapshot


def test_undecided_says_what_would_decide_it(report_of, snapshot):
    report = report_of(REFERENCE | {8: 15.7}, runs(n1=5, n4=5, n8=5, n2=5), noise=2.0)
    advice = report.recommendation
    assert (advice.chosen.nodes, advice.not_ruled_out) == (4, (8,))
    assert report.headline == snapshot
    assert advice.reason == snapshot
    assert {e.nodes: e.reason for e in advice.rejected}[8] == snapshot


def test_on_the_limit_is_an_answer_of_its_own(report_of, snapshot):
    on_it = {1: 100.0, 2: 51.0, 4: 26.0, 8: 100 / 8 / 0.752}
    report = report_of(on_it, runs(n1=5, n2=5, n4=5, n8=5), noise=0.1)
    advice = report.recommendation
    assert advice.chosen.nodes == 4 and advice.not_ruled_out == ()
    assert advice.reason == snapshot(name="reason")
    assert report.headline == snapshot(name="headline")
    assert {e.nodes: e.answer for e in advice.judged}[8] == "on_the_limit"
    assert advice.reason.partition(":")[0] in render_markdown(report)


def test_a_sweep_that_ended_before_its_design_says_so(report_of, snapshot):
    report = report_of(REFERENCE, runs())
    advice = report.recommendation
    assert advice.chosen.nodes == 1
    assert {each.nodes: each.reason for each in advice.rejected}[8] == snapshot
    assert {each.answer for each in advice.judged[1:]} == {"undecided"}
    assert report.caveats == snapshot


def test_another_model_is_no_answer(report_of, snapshot):
    def ended_at(value):
        return {"metrics": {"final_metric": {"name": "a", "goal": "maximize", "value": value}}}

    good, bad = ended_at(0.9), ended_at(0.5)
    report = report_of(REFERENCE, runs(n1=2, n2=2, n4=2), n1=good, n2=good, n4=good, n8=bad)
    advice = report.recommendation
    assert advice.chosen.nodes == 4
    assert {e.nodes: e.reason for e in advice.rejected}[8] == snapshot


@pytest.mark.parametrize("limit", ["deadline_seconds", "budget_usd_per_run"])
def test_a_limit_of_the_next_run_is_judged_as_in_a_full_sweep(report_of, config, limit):
    """`nodesweep report` may get other limits than the sweep had."""
    goals = config.report.recommendation.model_copy(update={limit: 1000.0})
    rules = config.report.model_copy(update={"recommendation": goals})
    other = config.model_copy(update={"report": rules})
    report = report_of(REFERENCE, runs(n1=2, n4=2, n8=2), with_config=other)
    assert report.recommendation.basis == "point"
    assert PROMISE not in report.headline


def test_the_end_at_max_repeats_is_called_undecided_with_what_to_do(
    make_config, report_of, snapshot
):
    config = make_config(
        sweep={"design": "sequential", "node_counts": list(COUNTS), "repeats": 3, "max_repeats": 2}
    )
    report = report_of(KNEE, runs(n1=2, n2=2, n4=2, n8=2), noise=8.0, with_config=config)
    (said,) = [each for each in report.caveats if each.startswith("Undecided at")]
    assert said == snapshot

    open_ = report_of(KNEE, runs(n1=2), noise=8.0, with_config=config)
    assert not any(each.startswith("Undecided at") for each in open_.caveats)


def test_repeats_that_are_no_passes_over_all_counts_are_not_paired(report_of, config):
    assert config.sweep.order == "shuffled"
    assert report_of(REFERENCE, runs(n1=3, n4=3, n8=3)).ratio_intervals == "bootstrap"


def test_two_runs_that_are_exactly_alike_are_odd_where_they_decide(
    report_of, make_report, snapshot
):
    report = report_of(REFERENCE, runs(n1=2, n4=2, n8=2), noise=0.0)
    assert report.recommendation.chosen.nodes == 8
    said = "\n".join(report.caveats)
    assert said == snapshot
    plain = report_of(REFERENCE, runs(n1=2, n4=2, n8=2), noise=0.0, with_config=None)
    assert not any("No variance" in each for each in plain.caveats)


def test_runs_that_the_design_asks_for_no_more_are_named(report_of, snapshot):
    report = report_of(REFERENCE, [*runs(n1=2, n4=2, n8=2), (1, 3), (2, 2)])
    assert report.caveats == snapshot
    assert {row.nodes: row.n for row in report.summary} == {1: 3, 2: 2, 4: 2, 8: 2}


def test_a_count_whose_last_runs_gave_no_time_is_undecided_for_that(
    config, make_outcome, make_report, snapshot
):
    outcomes = [
        make_outcome(nodes, REFERENCE[nodes] if repeat == 1 else None, repeat)
        for nodes, repeat in runs(n1=3, n2=3, n4=2, n8=2)
    ]
    report = make_report(outcomes, config=config)
    (said,) = [each for each in report.caveats if each.startswith("Undecided")]
    assert said == snapshot


def test_a_growing_batch_without_a_metric_ends_after_one_run_of_each(report_of, snapshot):
    grown = {f"n{nodes}": {"global_batch_size": 64 * nodes} for nodes in COUNTS}
    report = report_of(REFERENCE, runs(), **grown)
    assert report.recommendation.chosen is None
    assert report.headline == snapshot
