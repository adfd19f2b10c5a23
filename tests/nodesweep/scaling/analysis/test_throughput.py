"""A growing batch without a metric: samples per second, but no recommended node count."""

from __future__ import annotations

import pytest

from nodesweep.configs.models import ParityConfig, RecommendationConfig
from nodesweep.scaling.analysis.recommend import pareto_front, recommend
from nodesweep.scaling.measured.table import read_measured
from tests.nodesweep.scaling.conftest import summarise

BATCHES = {1: 256, 2: 512, 4: 1024, 8: 65_536}
TIMES = {1: 100, 2: 51, 4: 26, 8: 13.5}


def accuracy(value: float) -> dict[str, object]:
    return {"metrics": {"final_metric": {"name": "accuracy", "goal": "maximize", "value": value}}}


@pytest.fixture
def grown(make_outcome):
    """Return grown(times, fields={nodes: …}), outcomes whose batch grows."""

    def make(times=TIMES, fields=None, **common):
        return [
            make_outcome(
                nodes,
                seconds,
                **{"global_batch_size": BATCHES[nodes], **common, **(fields or {}).get(nodes, {})},
            )
            for nodes, seconds in times.items()
        ]

    return make


def advise(outcomes, parity=None, **goals):
    rows = summarise(outcomes, parity=parity)
    return rows, recommend(rows, RecommendationConfig(**goals))


@pytest.mark.parametrize("goals", [{}, {"deadline_seconds": 60}, {"budget_usd_per_run": 5}])
@pytest.mark.parametrize("policy", [None, "fixed_per_replica", "fixed_global"])
def test_a_batch_that_jumps_to_65536_without_a_metric_gets_no_node_count(policy, goals, grown):
    rows, answer = advise(grown(batch_policy=policy), **goals)
    assert answer.chosen is None and answer.runner_up is None
    assert [row.convergence_unknown for row in rows] == [False, True, True, True]
    assert {"throughput_only" in row.flags for row in rows[1:]} == {True}
    assert answer.reason.startswith("Throughput only: 2.0x, 3.8x and 7.4x the samples per second")
    assert "65,536" in answer.reason
    assert [choice.nodes for choice in answer.rejected] == [1, 2, 4, 8]
    assert pareto_front(rows) in ((), (1,))


def test_the_policy_is_enough(grown, snapshot):
    _, answer = advise(grown(global_batch_size=None, batch_policy="fixed_per_replica"))
    assert answer.chosen is None
    assert answer.reason == snapshot(name="reason")
    assert {choice.nodes: choice.reason for choice in answer.rejected} == snapshot(name="rejected")


@pytest.mark.parametrize(
    "fields",
    [
        {"global_batch_size": 512},
        {"global_batch_size": None},
        {"global_batch_size": None, "batch_policy": "fixed_global"},
        accuracy(0.9),
    ],
)
def test_a_constant_or_unknown_batch_or_a_metric_keeps_the_answer(fields, grown):
    rows, answer = advise(grown(**fields))
    assert answer.chosen.nodes == 8
    assert not any(row.convergence_unknown for row in rows)


def test_inefficient_counts_leave_no_baseline_either(grown):
    """A lower time to train is as unknown as before."""
    _, answer = advise(grown({1: 100, 2: 90, 4: 80}))
    assert answer.chosen is None and answer.reason.startswith("Throughput only")


def test_a_count_that_reached_the_target_is_recommended(grown):
    """The baseline reported no metric, so that the other counts are unknown."""
    rule = ParityConfig(target_metric=0.9)
    rows, answer = advise(grown(fields={2: accuracy(0.95)}), rule)
    assert rows[1].parity.verdict == "reached_target"
    assert answer.chosen.nodes == 2
    assert "convergence is unknown" in answer.rejected[-1].reason
    _, slow = advise(grown({1: 100, 2: 90, 4: 26}, {2: accuracy(0.95)}), rule)
    assert slow.chosen is None, "4 nodes may be better than the baseline"


def test_a_metric_at_the_baseline_alone_compares_nothing(grown, snapshot):
    rows, answer = advise(grown(fields={1: accuracy(0.9)}))
    assert [row.parity.verdict for row in rows] == ["baseline", *["unknown"] * 3]
    assert answer.chosen is None
    assert answer.reason == snapshot
    # with the same batch, a count without the metric is still not shown to train the same model
    rows, answer = advise(grown(global_batch_size=256, fields={1: accuracy(0.9)}))
    assert {row.parity.verdict for row in rows[1:]} == {"different"}
    assert answer.chosen.nodes == 1


def test_another_metric_than_the_baselines_is_known_to_differ(grown):
    loss = {"metrics": {"final_metric": {"name": "loss", "goal": "minimize", "value": 0.9}}}
    metrics = {nodes: loss for nodes in TIMES} | {1: accuracy(0.9)}
    rows, answer = advise(grown(fields=metrics))
    assert {row.parity.verdict for row in rows[1:]} == {"different"}
    assert answer.chosen.nodes == 1


def test_counts_that_missed_the_metric_are_known_to(grown):
    """The counts have a metric, so that the baseline is an answer."""
    metrics = {nodes: accuracy(0.9 if nodes == 1 else 0.5) for nodes in TIMES}
    _, answer = advise(grown(fields=metrics))
    assert answer.chosen.nodes == 1


def test_the_rate_is_that_of_the_samples(grown, snapshot):
    samples = {n: {"metrics": {"samples": {"processed": 51_200}}} for n in TIMES}
    rows, answer = advise(grown(fields=samples))
    assert [row.samples_per_second for row in rows] == [
        pytest.approx(51_200 / seconds) for seconds in TIMES.values()
    ]
    assert answer.reason == snapshot


def test_slow_rates_have_decimals_and_many_counts_are_two(make_outcomes, snapshot):
    times = {nodes: 2 / nodes for nodes in range(1, 9)}
    rows = make_outcomes(times, train_clock="throughput", batch_policy="fixed_per_replica")
    assert advise(rows)[1].reason == snapshot


def test_equal_times_of_a_growing_batch_are_weak_scaling(snapshot):
    table = "nodes,train_seconds,batch_policy\n1,100,fixed_per_replica\n2,100,fixed_per_replica\n"
    rows, answer = advise(read_measured(f"{table}4,102,fixed_per_replica\n"))
    assert [row.train.efficiency for row in rows] == [1, 1, pytest.approx(100 / 102)]
    assert [row.train.doubling_ratio for row in rows] == [None, 2, pytest.approx(200 / 102)]
    assert [row.train.speedup for row in rows] == [1, 2, pytest.approx(400 / 102)]
    assert [row.train.seconds for row in rows] == [100, 100, 102]
    assert not any("retrograde" in row.flags for row in rows)
    assert [row.samples_ratio for row in rows] == [1, 2, 4]
    assert answer.chosen is None and answer.reason == snapshot


def test_equal_times_with_a_metric_are_times_to_train():
    """More nodes give the same result no sooner, so that they have no advantage."""
    rows, answer = advise(
        read_measured(
            "nodes,train_seconds,batch_policy,final_metric\n1,100,fixed_per_replica,0.9\n"
            "2,100,fixed_per_replica,0.9\n"
        )
    )
    assert answer.chosen.nodes == 1 and rows[1].train.efficiency == 0.5


def test_slower_weak_scaling_is_retrograde_by_its_rate(make_outcomes):
    fields = {"batch_policy": "fixed_per_replica", "platform_kind": "measured", "world_size": None}
    rows = summarise(make_outcomes({1: [100, 101, 102], 2: [250, 251, 252]}, **fields))
    assert "retrograde" in rows[1].flags
    at = rows[1].train
    assert at.efficiency == pytest.approx(101 / 251, rel=1e-3)
    assert at.efficiency_interval.low <= at.efficiency <= at.efficiency_interval.high
    assert at.speedup_interval.low <= at.speedup <= at.speedup_interval.high


def test_efficiency_against_one_process_is_by_samples(make_outcome):
    rows = summarise(
        [
            make_outcome(
                n, 100, world_size=n, batch_policy="fixed_per_replica", platform_kind="measured"
            )
            for n in (1, 2)
        ]
    )
    assert [row.accelerator_efficiency for row in rows] == [1, 1]


def test_the_inner_loop_is_per_sample_anyway(make_outcome):
    from nodesweep.scaling.outcome.outcome import Clocks

    clocks = Clocks(train_seconds=100, steady_step_seconds=1.0, billable_seconds=110)
    rows = summarise(
        [
            make_outcome(
                n,
                100,
                clocks=clocks,
                global_batch_size=64 * n,
                metrics={"samples": {"processed": 6400 * n}},
            )
            for n in (1, 2)
        ]
    )
    assert (rows[1].clocks.steady.efficiency, rows[1].train.efficiency) == (1, 1)
    assert rows[1].clocks.billable.efficiency == 1


@pytest.mark.parametrize(("attained", "has_rates"), [(80.0, True), (40.0, False)])
def test_rates_need_a_baseline_that_got_its_cpu(attained, has_rates, grown):
    contended = {"utilisation": {"attained_percent": attained}, "platform_kind": "emulated"}
    _, answer = advise(grown(fields={1: contended}, platform_kind="emulated"))
    assert answer.chosen is None
    assert answer.reason.startswith("Throughput only") is has_rates
