"""The predicted effect of changes, by hand and by their properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesweep.scaling.analysis.remedies import REMEDIES, Setting, find_remedies
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.analysis.step_budget import find_step_budget
from tests.nodesweep.scaling.analysis.test_step_budget import metrics, rank, run
from tests.nodesweep.scaling.conftest import outcome

EVERYTHING = Setting(
    uses_fsdp=True,
    copies_data=True,
    has_gpus=True,
    has_larger_instance=True,
    could_use_smddp=True,
    lacks_efa=True,
)


def remedies_of(outcomes, setting=None, chosen=None):
    rows, runs = summarise_runs(outcomes)
    budget = find_step_budget(rows, runs)
    return find_remedies(rows, runs, budget, setting or Setting(), chosen)


def at(nodes, seconds=None, repeat=1, ranks=None, **parts):
    """Return a run whose processes, one per node, all have these parts."""
    each = [rank(number, **parts) for number in range(nodes)]
    return run(outcome, nodes, seconds or sum(parts.values()), ranks or each, repeat)


def named(found):
    return {each.name: each for each in found.ranked if each.predictions}


def values(remedy):
    """Return (seconds, efficiency) by node count."""
    return {
        each.nodes: (round(each.seconds, 6), round(each.efficiency, 6))
        for each in remedy.predictions
    }


def two_counts(**parts):
    """Return 10 s on one node, 2 s of them in the optimizer, and these parts on two."""
    return [at(1, forward=8.0, optimizer=2.0), at(2, **parts)]


def test_each_change_by_hand():
    """At 2 nodes T is 10 s: 4 forward, 1 optimizer, 3 communication, 2 data; E is 0.5.

    Twice the batch saves 2 of 10 s there and 1 of 10 at one node: E = 9 / (2 x 8). 16-bit gradients
    save 1.5 s: E = 10 / (2 x 8.5). Twice the workers save 2 s: E = 10 / (2 x 8).
    """
    found = remedies_of(two_counts(forward=4.0, optimizer=1.0, communication=3.0, data=2.0))
    assert found.nodes == 2
    by_name = named(found)
    assert list(by_name) == ["batch", "loader_workers", "compression"]
    assert [by_name[name].saved for name in by_name] == pytest.approx([0.2, 0.2, 0.15])
    assert values(by_name["batch"]) == {1: (9.0, 1.0), 2: (8.0, 0.5625)}
    assert values(by_name["compression"]) == {1: (10.0, 1.0), 2: (8.5, 0.588235)}
    assert values(by_name["loader_workers"]) == {1: (10.0, 1.0), 2: (8.0, 0.625)}
    assert {each.interval for remedy in by_name.values() for each in remedy.predictions} == {None}
    outcomes = two_counts(forward=4.0, optimizer=1.0, communication=3.0, data=2.0)
    compressed = named(remedies_of(outcomes, Setting(compresses=True)))
    assert list(compressed) == ["batch", "loader_workers"]


def test_ddp_moves_two_thirds_of_what_fsdp_does():
    outcomes = two_counts(forward=7.0, communication=3.0)
    found = remedies_of(outcomes, Setting(uses_ddp=False, uses_fsdp=True))
    assert set(named(found)) == {"batch", "ddp"}
    assert named(found)["ddp"].saved == pytest.approx(0.1)
    assert "ddp" not in named(remedies_of(outcomes))


def test_a_slow_node_leaves_the_waiting_for_the_next_slowest():
    """Node 3 arrives 3 s after node 1 and 2 s after node 2, so that 2 of 10 s are saved."""
    ranks = [
        rank(0, forward=6.0, communication=4.0),
        rank(1, forward=7.0, communication=3.0),
        rank(2, forward=9.0, communication=1.0),
    ]
    found = remedies_of([at(1, forward=24.0), at(3, 10.0, ranks=ranks)])
    remedy = named(found)["slow_node"]
    assert (remedy.change, remedy.saved) == (
        "A different node instead of algo-3, or less work for it",
        pytest.approx(0.2),
    )
    assert values(remedy)[3] == (8.0, 1.0)


def test_a_replaced_node_still_varies():
    """Node 2 comes 1 s or 5 s after node 1: 3 s on average.

    As fast on average, it comes 2 s before or 2 s after node 1: T falls by 1 and 3 s in turn.
    """
    ranks = [rank(0, 20, 80.0, forward=20.0), rank(1, 20, 20.0, forward=80.0)]
    ranks[0]["communication_seconds"] = [2.0, 6.0] * 10
    outcomes = [at(1, forward=100.0), at(2, 100.0, ranks=ranks)]
    assert named(remedies_of(outcomes))["slow_node"].saved == pytest.approx(0.4)


def test_runs_that_disagree_on_the_slowest_node_predict_nothing_of_it():
    slow = [rank(0, forward=6.0, communication=4.0), rank(1, forward=9.0, communication=1.0)]
    fast = [rank(0, forward=9.0, communication=1.0), rank(1, forward=6.0, communication=4.0)]
    outcomes = [at(1, forward=10.0), at(2, 10.0, ranks=slow)]
    assert "slow_node" in named(remedies_of(outcomes))
    assert "slow_node" not in named(remedies_of([*outcomes, at(2, 10.0, 2, fast)]))


@pytest.mark.parametrize(
    ("data", "used", "saved"),
    [(3.0, None, 0.3), (7.0, None, 0.5), (3.0, 80.0, 0.2), (3.0, 70.0, 0.3), (3.0, 100.0, None)],
)
def test_more_workers_need_idle_cores(data, used, saved):
    """More than half of T is data wait, so that a loader that is twice as fast still needs half of
    it."""
    two = at(2, forward=10.0 - data, data=data)
    if used is not None:
        two = replace(two, utilisation={"quota_used_percent": used})
    found = named(remedies_of([at(1, forward=10.0), two]))
    assert (found["loader_workers"].saved if saved else found.get("loader_workers")) == (
        pytest.approx(saved) if saved else None
    )


def test_a_part_of_every_count_shortens_the_time_but_not_the_loss():
    """The loader's share is 30% of T at both one and two nodes, so E stays the same."""
    found = remedies_of([at(1, forward=14.0, data=6.0), at(2, forward=7.0, data=3.0)])
    assert values(named(found)["loader_workers"]) == {1: (14.0, 1.0), 2: (7.0, 1.0)}


def test_no_efficiency_above_1_is_predicted_where_compute_got_faster():
    found = remedies_of([at(1, forward=10.0), at(2, forward=3.0, communication=2.5)])
    assert values(named(found)["batch"])[2] == (5.0, 1.0)
    assert named(remedies_of([at(1, forward=10.0), at(2, forward=3.0, communication=2.0)])) == {}


def test_they_are_ranked_at_the_chosen_count_unless_it_is_the_baseline():
    outcomes = [
        at(1, forward=10.0),
        at(2, forward=5.0, communication=2.0, data=0.5),
        at(4, forward=2.5, communication=0.5, data=3.0),
    ]
    at_2, at_4 = remedies_of(outcomes, chosen=2), remedies_of(outcomes, chosen=4)
    assert (at_2.nodes, next(iter(named(at_2)))) == (2, "batch")
    assert (at_4.nodes, next(iter(named(at_4)))) == (4, "loader_workers")
    assert [remedies_of(outcomes, chosen=each).nodes for each in (None, 1, 8)] == [4, 4, 4]


def test_where_nothing_would_help_at_the_chosen_count_they_are_ranked_at_the_largest():
    outcomes = [
        at(1, forward=10.0),
        at(2, forward=5.0, communication=0.3),
        at(4, forward=2.5, communication=2.0),
    ]
    found = remedies_of(outcomes, chosen=2)
    assert (found.nodes, list(named(found))) == (4, ["batch", "compression"])


def repeated(communication):
    """Return three runs of 10 s on one node, and runs of 5 s and these exposed seconds on two."""
    return [
        *(at(1, repeat=repeat, forward=10.0 + repeat / 100) for repeat in range(1, 4)),
        *(
            at(2, repeat=repeat, forward=5.0, communication=seconds)
            for repeat, seconds in enumerate(communication, start=1)
        ),
    ]


def test_with_repeats_it_has_an_interval_up_to_the_most_that_it_could_save():
    found = remedies_of(repeated([1.0, 1.02, 0.98]))
    one, two = named(found)["compression"].predictions
    assert one.interval is None
    assert two.efficiency == pytest.approx(10 / (2 * 5.5), abs=0.005)
    assert two.interval.low < two.efficiency < 0.99 < two.interval.high < 1.05


def test_a_saving_within_the_noise_of_the_repeats_is_not_shown():
    assert "compression" in named(remedies_of(repeated([0.3, 0.31, 0.29])))
    assert named(remedies_of(repeated([0.01, 0.9, 0.02]))) == {}
    assert named(remedies_of(repeated([0.1, 0.1, 0.1]))) == {}
    few = two_counts(forward=4.55, communication=0.45)
    assert named(remedies_of(few)) == {}


def test_what_is_not_measured_is_said_for_named_causes_only():
    outcomes = two_counts(forward=5.0, communication=5.0)
    others = [each for each in remedies_of(outcomes, EVERYTHING).ranked if not each.predictions]
    assert [each.name for each in others] == ["bucket_size", "larger_instance", "smddp", "efa"]
    assert all(each.unmeasured and not each.assumes and each.saved is None for each in others)
    data = [at(1, forward=10.0), at(2, forward=5.0, data=5.0)]
    others = [each for each in remedies_of(data, EVERYTHING).ranked if not each.predictions]
    assert [each.name for each in others] == ["data_shards", "pin_memory"]


def test_communication_with_waiting_in_it_predicts_nothing():
    outcomes = two_counts(forward=5.0, communication=5.0)
    lost = replace(outcomes[1], metrics=metrics(rank(forward=5.0, communication=5.0), world=2))
    found = remedies_of([outcomes[0], lost])
    assert named(found) == {}
    assert [each.name for each in found.ranked] == ["batch", "compression", "bucket_size"]


@pytest.mark.parametrize("baseline", [None, {"quota_used_percent": 50.0, "attained_percent": 40.0}])
def test_without_a_sound_baseline_there_is_none(baseline):
    one, two = two_counts(forward=5.0, communication=5.0)
    one = replace(one, metrics={}) if baseline is None else replace(one, utilisation=baseline)
    assert remedies_of([one, two]) is None


def test_every_row_has_either_a_prediction_or_a_reason():
    for remedy in REMEDIES:
        is_predicted = remedy.saving is not None
        assert [remedy.assumes is not None, remedy.unmeasured is None] == [is_predicted] * 2
    assert len({remedy.name for remedy in REMEDIES}) == len(REMEDIES) == 13


PART = {
    "communication": ("batch", "compression"),
    "data": ("loader_workers",),
}
SECONDS = st.floats(0.0, 20.0).map(lambda value: round(value, 3))


@settings(max_examples=60, deadline=None)
@given(
    base=st.fixed_dictionaries(
        {"forward": st.floats(1.0, 50.0), "optimizer": SECONDS, "data": SECONDS}
    ),
    parts=st.fixed_dictionaries(
        {
            "forward": st.floats(1.0, 50.0),
            "optimizer": SECONDS,
            "communication": SECONDS,
            "data": SECONDS,
        }
    ),
)
def test_a_prediction_takes_no_more_than_is_lost(base, parts):
    outcomes = [at(1, **base), at(2, **parts)]
    rows, _ = summarise_runs(outcomes)
    found = remedies_of(outcomes, EVERYTHING)
    for remedy in named(found).values():
        for each, row in zip(remedy.predictions, rows, strict=True):
            assert 0 < each.seconds <= row.train.seconds
            assert 0 < each.efficiency <= max(1.0, row.train.efficiency) + 1e-9
    for part, names in PART.items():
        if not parts[part] and not parts["optimizer"]:
            assert not {*names} & {*named(found)}


@settings(max_examples=40, deadline=None)
@given(
    total=st.floats(6.0, 50.0),
    share=st.floats(0.1, 0.8),
    more=st.floats(0.01, 0.15),
    part=st.sampled_from(sorted(PART)),
)
def test_the_larger_the_part_the_larger_the_saving(total, share, more, part):
    def saved(part_share):
        parts = {"forward": total * (1 - part_share), part: total * part_share}
        found = named(remedies_of([at(1, forward=10.0), at(2, **parts)]))
        return [found[name].saved if name in found else 0.0 for name in PART[part]]

    for less, larger in zip(saved(share), saved(share + more), strict=True):
        assert larger >= less - 1e-9
