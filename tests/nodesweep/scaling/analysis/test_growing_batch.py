"""Growth of the batch, samples and rates, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from nodesweep.scaling.analysis.growing_batch import (
    grown_batches,
    samples_per_second,
    samples_ratios,
)

WEAK = {"batch_policy": "fixed_per_replica"}


def counted(samples: object) -> dict[str, object]:
    return {"metrics": {"samples": {"processed": samples}}}


@pytest.fixture
def timed(make_outcome):
    """Return timed({nodes: seconds}, **fields), with a used run at each count."""

    def make(times, **fields):
        return {
            nodes: [(make_outcome(nodes, seconds, **fields), seconds)]
            for nodes, seconds in times.items()
        }

    return make


@pytest.mark.parametrize(
    ("base", "at", "policy", "grows"),
    [
        (256, 65_536, None, True),
        (256, 65_536, "fixed_global", True),  # the program ignored the plan
        (256, 256, "fixed_per_replica", False),  # all ranks share one replica of the model
        (1000, 1002, None, False),  # 3 x 334
        (512, 256, None, False),
        (None, None, "fixed_per_replica", True),
        (256, None, "fixed_per_replica", True),
        (None, 512, None, False),
        (None, None, "fixed_global", False),
        (None, None, None, False),
    ],
)
def test_the_sizes_decide_else_the_policy(base, at, policy, grows, make_outcome):
    first = make_outcome(1, 9, global_batch_size=base, batch_policy=policy)
    other = make_outcome(2, 9, global_batch_size=at, batch_policy=policy)
    assert set(grown_batches({1: [first], 2: [other]}, 1)) == ({2} if grows else set())


@pytest.mark.parametrize(
    ("sizes", "grown"),
    [
        ({1: 256, 2: None, 4: 1024}, {2, 4}),  # the count without a size is not the exception
        ({1: None, 2: 512, 4: 1024}, {2, 4}),
        ({1: None, 2: 512, 4: 512}, set()),
        ({1: 256, 2: None, 4: 256}, set()),
    ],
)
def test_a_count_without_a_size_grows_as_the_others(sizes, grown, make_outcome):
    runs = {n: [make_outcome(n, 9, global_batch_size=size)] for n, size in sizes.items()}
    assert set(grown_batches(runs, 1)) == grown


def test_one_repeat_with_a_larger_batch_is_growth(make_outcome):
    runs = [make_outcome(2, 9, repeat, global_batch_size=64 * repeat) for repeat in (1, 2)]
    base = [make_outcome(1, 9, global_batch_size=64)]
    assert set(grown_batches({1: base, 2: runs}, 1)) == {2}


def test_growth_names_the_sizes(make_outcome, snapshot):
    small, large = (make_outcome(n, 9, global_batch_size=256**n) for n in (1, 2))
    assert grown_batches({1: [small], 2: [large]}, 1) == snapshot(name="sizes")
    by_policy = make_outcome(2, 9, batch_policy="fixed_per_replica")
    assert grown_batches({1: [small], 2: [by_policy]}, 1) == snapshot(name="policy")
    unknown = make_outcome(4, 9)
    assert grown_batches({1: [small], 2: [large], 4: [unknown]}, 1)[4] == snapshot(name="others")


def test_equal_times_of_a_table_are_equal_steps(timed):
    times = {1: 100, 2: 100, 4: 102}
    assert samples_ratios(timed(times, **WEAK), 1, "measured") == {1: 1, 2: 2, 4: 4}
    assert samples_ratios(timed({2: 100, 4: 102}, **WEAK), 2, "measured") == {2: 1, 4: 2}


def test_steps_are_of_the_batch_if_it_is_known_else_of_the_processes(make_outcome):
    def ratios(**fields):
        runs = {
            nodes: [
                (
                    make_outcome(nodes, 100, **WEAK, **{k: v[nodes] for k, v in fields.items()}),
                    100.0,
                )
            ]
            for nodes in (1, 2)
        }
        return samples_ratios(runs, 1, "measured")

    processes = {"world_size": {1: 4, 2: 12}}
    assert ratios(**processes) == {1: 1, 2: 3}
    assert ratios(global_batch_size={1: 100, 2: 500}, **processes) == {1: 1, 2: 5}
    assert ratios(global_batch_size={1: 100, 2: None}, **processes) == {1: 1, 2: 3}


@pytest.mark.parametrize(
    ("times", "clock", "planned"),
    [
        ({1: 100, 2: 89}, "measured", {}),  # 1/0.89 would be an efficiency of 112%
        ({1: 100, 2: 50, 4: 100}, "measured", {}),
        ({1: 100, 2: 100}, "throughput", {}),
        ({1: 100, 2: 100}, "training_phase", {}),
        ({1: 100, 2: 100}, "program", {"world_size": 2}),  # the plan is the same work
    ],
)
def test_other_times_are_compared_as_they_are(times, clock, planned, timed):
    assert samples_ratios(timed(times, planned=planned), 1, clock) == {}


def test_counted_samples_decide_in_a_sweep(make_outcome):
    def ratios(*samples):
        runs = {
            nodes: [(make_outcome(nodes, 9, planned={"world_size": nodes}, **counted(each)), 9.0)]
            for nodes, each in enumerate(samples, start=1)
        }
        return samples_ratios(runs, 1, "program")

    assert ratios(1000, 2000) == {1: 1, 2: 2}
    assert ratios(1000, 1005) == {}, "filled up to whole batches"
    assert ratios(1000, None) == ratios(1000, 0) == ratios(1000, "many") == {}


def test_rates(make_outcome):
    run = make_outcome(1, 8, **counted(4000))
    bare = make_outcome(1, 8)
    assert samples_per_second([(run, 8.0)], "program", 0.001) == 500
    assert samples_per_second([(run, 8.0)], "training_phase", 0.001) == 1000
    assert samples_per_second([(run, 8.0), (bare, 8.0)], "program", 0.001) == 1000
    assert samples_per_second([(bare, 8.0)], "program", None) is None
    assert samples_per_second([(bare, 0.004), (bare, 0.009)], "throughput", None) == (
        pytest.approx(1 / 0.006)
    )
    assert samples_per_second([], "throughput", None) is None
