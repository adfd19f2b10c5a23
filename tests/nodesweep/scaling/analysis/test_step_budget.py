"""The parts of T, and the causes of lost efficiency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.analysis.step_budget import (
    WRITTEN,
    find_missing_parts,
    find_step_budget,
    read_run_budget,
)
from nodesweep.scaling.outcome.projection import ProjectedPart, Projection


def rank(number=0, steps=30, communication=0.0, node=None, **seconds):
    """Return the file of a rank: its parts in seconds, with equal communication in each step."""
    parts = {**dict.fromkeys(WRITTEN, 0.0), "communication": communication, **seconds}
    return {
        "rank": number,
        "node": node or f"algo-{number + 1}",
        "seconds": parts,
        "communication_seconds": [communication / steps] * steps,
        "steps_per_value": 1,
        "split_every": 1,
    }


def metrics(*ranks, world=None):
    return {"budget": list(ranks), "world": {"world_size": world or len(ranks)}}


def run(make_outcome, nodes, seconds, ranks, repeat=1):
    return make_outcome(
        nodes,
        seconds,
        repeat,
        train_clock="observed",
        train_seconds_by={"observed": seconds},
        metrics=metrics(*ranks),
    )


def budget_of(outcomes):
    return find_step_budget(*summarise_runs(outcomes))


def shares(count):
    return {part.name: part.share for part in count.parts if part.share}


def causes(loss):
    return {each.cause: round(each.efficiency, 3) for each in loss.causes if each.named}


NETWORK = {
    "exchanges": 30,
    "bucket_bytes": [4096, 4096],
    "all_reduce": [[4096, 0.01], [16384, 0.01], [65536, 0.02]],
}


def test_one_process_waits_for_none():
    found = read_run_budget(metrics(rank(data=4.0, forward=6.0)), 10.0)
    assert (found.shares["data"], found.shares["forward"]) == (0.4, 0.6)
    assert found.shares["waiting"] == found.shares["communication"] == 0
    assert found.slowest_node is None


def test_the_others_wait_for_the_slowest_node():
    """Rank 1 computes 8 of 10 s and transfers for 2; rank 0 computes 5 and waits for 3 of its 5.

    The parts are those of rank 0: what rank 1 does in these 3 s is why it waits.
    """
    found = read_run_budget(
        metrics(rank(0, forward=5.0, communication=5.0), rank(1, forward=8.0, communication=2.0)),
        10.0,
    )
    assert found.shares["communication"] == pytest.approx(0.2)
    assert found.shares["waiting"] == pytest.approx(0.3)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.slowest_node == "algo-2"


def test_waiting_for_the_checkpoints_of_rank_0_is_time_of_checkpoints():
    """Rank 1 waits for 2 of its 4 s, since rank 0 saves a checkpoint for 2 s."""
    saves = rank(0, forward=6.0, checkpoint=2.0, communication=2.0)
    waits = rank(1, forward=6.0, communication=4.0)
    found = read_run_budget(metrics(saves, waits), 10.0)
    assert (found.shares["checkpoint"], found.shares["communication"]) == pytest.approx((0.2, 0.2))
    assert (found.shares["waiting"], found.slowest_node) == (pytest.approx(0), None)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_slow_node_is_named_next_to_the_checkpoints_of_rank_0():
    """Rank 2 computes for 3 s longer; rank 0 saves for 1 s, for which rank 1 waits, too."""
    ranks = [
        rank(0, forward=4.0, checkpoint=1.0, communication=5.0),
        rank(1, forward=4.0, communication=6.0),
        rank(2, forward=7.0, communication=3.0),
    ]
    for each, step in zip(ranks, [(0.0, 0.5), (0.1, 0.5), (0.1, 0.2)], strict=True):
        each["communication_seconds"] = list(step) * 10
    found = read_run_budget(metrics(*ranks), 10.0)
    assert found.slowest_node == "algo-3"
    # ranks 0 and 1 wait 3 s for rank 2, and rank 1 waits 1 s for rank 0's checkpoints
    assert found.shares["checkpoint"] == pytest.approx(0.1)
    assert found.shares["waiting"] == pytest.approx(0.3)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_checkpoint_that_nobody_waits_for_stays_that_of_one_rank():
    saves = rank(0, forward=8.0, checkpoint=2.0)
    found = read_run_budget(metrics(saves, rank(1, forward=10.0)), 10.0)
    assert (found.shares["checkpoint"], found.shares["waiting"]) == (pytest.approx(0.1), 0)


def test_waiting_in_turns_names_no_node():
    ranks = [rank(0, forward=6.0, communication=4.0), rank(1, forward=6.0, communication=4.0)]
    ranks[0]["communication_seconds"] = [0.1, 0.3] * 10
    ranks[1]["communication_seconds"] = [0.3, 0.1] * 10
    found = read_run_budget(metrics(*ranks), 10.0)
    assert (found.shares["communication"], found.shares["waiting"]) == pytest.approx((0.2, 0.2))
    assert found.slowest_node is None


def test_few_steps_name_no_node_and_no_communication_is_no_waiting():
    few = [rank(0, 19, 5.0, forward=5.0), rank(1, 19, 2.0, forward=8.0)]
    assert read_run_budget(metrics(*few), 10.0).slowest_node is None
    none = read_run_budget(metrics(rank(0, forward=10.0), rank(1, forward=10.0)), 10.0)
    assert (none.shares["waiting"], none.slowest_node) == (0, None)


@pytest.mark.parametrize("change", [{"steps_per_value": 2}, {"communication_seconds": []}])
def test_ranks_that_cannot_be_compared_leave_waiting_in_the_communication(change):
    ranks = [rank(0, forward=6.0, communication=4.0), rank(1, forward=9.0, communication=1.0)]
    found = read_run_budget(metrics(ranks[0], {**ranks[1], **change}), 10.0)
    assert found.shares["communication"] == pytest.approx(0.25)
    assert "waiting" not in found.shares


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (None, 10.0),
        ({"budget": "none"}, 10.0),
        ({"budget": [rank(forward=10.0)]}, 10.0),
        (metrics(rank(forward=10.0)), None),
        (metrics(rank(forward=10.0)), 9.6),
        (metrics(rank(1, forward=10.0), world=2), 10.0),
        (metrics(rank()), 10.0),
        (metrics(None, "text", {"rank": 0}, {"rank": "0"}), 10.0),
        (metrics({**rank(forward=10.0), "communication_seconds": None}), 10.0),
        (metrics({**rank(forward=10.0), "seconds": {"forward": 10.0}}), 10.0),
        (metrics(rank(forward=float("nan"))), 10.0),
    ],
)
def test_what_is_not_a_whole_budget_of_this_time_is_unknown(written, seconds):
    assert read_run_budget(written, seconds) is None


def test_one_node_waits_for_itself():
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    ranks[1]["node"] = "algo-1"
    found = read_run_budget(metrics(*ranks), 10.0)
    assert (found.slowest_node, found.shares["waiting"]) == (None, pytest.approx(0.15))


def test_a_node_name_from_elsewhere_is_not_shown():
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    ranks[1]["node"] = "ip-10-0-0-1.internal"
    assert read_run_budget(metrics(*ranks), 10.0).slowest_node is None


def test_a_loss_is_split_by_hand(make_outcome):
    """At 1 node 10 s of compute; at 2 nodes 5 s, 2 s of communication and 1 s of data wait.

    E(2) = 10 / (2 x 8) = 0.625: of the 0.375 lost, 2/8 is communication and 1/8 data.
    """
    found = budget_of(
        [
            run(make_outcome, 1, 10.0, [rank(backward=10.0)]),
            run(
                make_outcome,
                2,
                8.0,
                [rank(each, backward=5.0, communication=2.0, data=1.0) for each in range(2)],
            ),
        ]
    )
    one, two = found.counts
    assert shares(one) == {"backward": 1}
    assert shares(two) == {"backward": 0.625, "communication": 0.25, "data": 0.125}
    assert [part.seconds for part in two.parts if part.name == "communication"] == [2.0]
    [loss] = found.losses
    assert (loss.from_nodes, loss.to_nodes, loss.efficiency) == (1, 2, pytest.approx(0.375))
    assert causes(loss) == {"communication": 0.25, "data": 0.125}
    assert sum(each.efficiency for each in loss.causes) == pytest.approx(loss.efficiency)
    assert {each.interval for each in loss.causes} == {None}


def repeated(make_outcome, communication, base=(10.0, 10.1, 9.9)):
    """Return one node of 10 s, and two nodes of 5 s with this much communication per repeat."""
    outcomes = [
        run(make_outcome, 1, seconds, [rank(backward=seconds)], repeat)
        for repeat, seconds in enumerate(base, start=1)
    ]
    return budget_of(
        outcomes
        + [
            run(
                make_outcome,
                2,
                5.0 + extra,
                [rank(each, backward=5.0, communication=extra) for each in range(2)],
                repeat,
            )
            for repeat, extra in enumerate(communication, start=1)
        ]
    )


def test_a_cause_within_the_noise_of_the_repeats_is_not_named(make_outcome):
    [steady] = repeated(make_outcome, [1.0, 1.05, 0.95]).losses
    assert causes(steady) == {"communication": pytest.approx(1 / 6, abs=0.01)}
    interval = steady.causes[0].interval
    assert 0 < interval.low < steady.causes[0].efficiency < interval.high
    [noisy] = repeated(make_outcome, [0.05, 1.0, 3.0]).losses
    assert causes(noisy) == {}


def test_equal_repeats_have_an_interval_of_no_width(make_outcome):
    [loss] = repeated(make_outcome, [1.0] * 3, base=[10.0] * 3).losses
    assert causes(loss) == {"communication": 0.167}
    assert loss.causes[0].interval.low == pytest.approx(loss.causes[0].interval.high)


def test_the_slowest_node_is_that_of_most_runs(make_outcome):
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    turned = [rank(0, communication=2.0, forward=8.0), rank(1, communication=5.0, forward=5.0)]
    always = [run(make_outcome, 2, 10.0, ranks, repeat) for repeat in (1, 2)]
    assert budget_of(always).counts[0].slowest_node == "algo-2"
    changing = [always[0], run(make_outcome, 2, 10.0, turned, 2)]
    assert budget_of(changing).counts[0].slowest_node is None


def test_one_run_without_its_ranks_leaves_waiting_in_the_communication_of_all(make_outcome):
    whole = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    failed = replace(run(make_outcome, 2, 10.0, whole, 3), status="Failed")
    outcomes = [run(make_outcome, 2, 10.0, whole), run(make_outcome, 2, 10.0, whole, 2)]
    part = replace(outcomes[1], metrics=metrics(whole[0], world=2))
    [count] = budget_of([outcomes[0], part, failed]).counts
    assert shares(count)["communication"] == pytest.approx(0.5)
    assert "waiting" not in {each.name for each in count.parts}


def probe(make_outcome, nodes, whole, ranks, checkpoints=0.0):
    """Return a run of 10 s that is projected to `whole`, including `checkpoints` for
    checkpoints."""
    part = ProjectedPart(name="checkpoints", left_out=1, seconds_each=checkpoints, error_seconds=0)
    projection = Projection(
        train_seconds=whole, error_seconds=None, extra_seconds=whole - 10.0, ended="max_steps",
        steps=10, planned_steps=100, measured_seconds=10.0, parts=(part,),
    )  # fmt: skip
    return make_outcome(
        nodes,
        whole,
        train_clock="projected",
        train_seconds_by={"projected": whole},
        projection=projection,
        metrics=metrics(*ranks),
    )


def test_the_parts_of_a_probe_grow_to_those_of_a_whole_run_by_hand(make_outcome):
    """Of 9 s of steps, 6 are forward: 85 s more make each ten times and 4/9; 4 s are saved."""
    ranks = [rank(start=1.0, forward=6.0, data=3.0)]
    [count] = budget_of([probe(make_outcome, 1, 99.0, ranks, checkpoints=4.0)]).counts
    seconds = {part.name: pytest.approx(part.seconds) for part in count.parts if part.seconds}
    grown = 1 + 85 / 9
    assert seconds == {"forward": 6 * grown, "data": 3 * grown, "start": 1.0, "checkpoint": 4.0}
    assert sum(part.seconds for part in count.parts) == pytest.approx(99.0)
    assert [sum(part.by_run) for part in count.parts if part.name == "data"] == [seconds["data"]]


def with_network(ranks, **changed):
    return metrics({**ranks[0], "network": {**NETWORK, **changed}}, *ranks[1:])


def test_the_whole_exchange_of_a_run_is_that_of_the_steps_that_were_split(make_outcome):
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    known = replace(run(make_outcome, 2, 10.0, ranks), metrics=with_network(ranks))
    [count] = budget_of([known, run(make_outcome, 2, 10.0, ranks, 2)]).counts
    found = count.exchange
    assert (found.latency_seconds, found.transfer_seconds) == pytest.approx((2 * 30 * 0.01, 0.0))
    assert found.last_bucket_share == 0.5
    [unknown] = budget_of([run(make_outcome, 2, 10.0, ranks)]).counts
    assert unknown.exchange is None
    assert "exchange" not in unknown.model_dump()


@pytest.mark.parametrize(
    "changed",
    [
        {"exchanges": 10**306},
        {"exchanges": 10**308, "bucket_bytes": [1e308]},
        {"bucket_bytes": [1e306]},
        {"all_reduce": [[1, 1e308], [2, 1e308], [3, 1e308]]},
        {"bucket_bytes": [1e308], "all_reduce": [[1, 1], [2, 2], [3, 1e308]]},
    ],
)
def test_an_impossible_exchange_is_unknown(make_outcome, changed):
    """A number in metrics.json may be so large that its products are infinite."""
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    known = replace(run(make_outcome, 2, 10.0, ranks), metrics=with_network(ranks, **changed))
    [count] = budget_of([known]).counts
    assert count.exchange is None


def test_the_whole_exchange_of_a_probe_grows_as_the_parts_of_its_steps(make_outcome):
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    short = replace(probe(make_outcome, 2, 100.0, ranks), metrics=with_network(ranks))
    [count] = budget_of([short]).counts
    assert count.exchange.latency_seconds == pytest.approx(2 * 30 * 0.01 * 10)


def test_the_slowest_node_of_a_probe_is_that_of_the_steps_it_made(make_outcome):
    ranks = [rank(0, communication=5.0, forward=5.0), rank(1, communication=2.0, forward=8.0)]
    [count] = budget_of([probe(make_outcome, 2, 100.0, ranks)]).counts
    assert count.slowest_node == "algo-2"


@pytest.mark.parametrize("ranks", [[rank(start=10.0)], [rank(forward=1.0, checkpoint=9.0)]])
def test_a_probe_whose_steps_took_no_time_has_no_parts(make_outcome, ranks):
    assert budget_of([probe(make_outcome, 1, 8.0, ranks, checkpoints=1.0)]) is None


def test_a_probe_of_which_only_a_part_is_split_has_no_parts(make_outcome):
    assert budget_of([probe(make_outcome, 1, 99.0, [rank(forward=5.0)])]) is None


def test_without_observed_runs_there_is_none(make_outcome, make_outcomes):
    assert budget_of(make_outcomes({1: 10.0, 2: 5.0})) is None
    odd = run(make_outcome, 1, 10.0, [rank()])
    assert budget_of([odd]) is None


def test_a_count_is_compared_with_half_of_it_or_else_the_next_smaller_count(make_outcome):
    counts = (1, 3, 4, 6)
    found = budget_of([run(make_outcome, nodes, 10.0, [rank(forward=10.0)]) for nodes in counts])
    assert [count.nodes for count in found.counts] == [1, 3, 4, 6]
    assert [(loss.from_nodes, loss.to_nodes) for loss in found.losses] == [(1, 3), (3, 4), (3, 6)]
    for loss in found.losses:
        assert sum(each.efficiency for each in loss.causes) == pytest.approx(loss.efficiency)


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_gain_is_one_by_as_much_as_a_cause_must_cost(make_outcome, repeats):
    """Compute falls from 10 s to 2 x 4 s: E(2) = 0.5, and 1 x 0.4 - 0.5 x 1 = -0.1."""
    outcomes = []
    for repeat in range(1, repeats + 1):
        extra = 0.01 * repeat
        slow = [rank(each, backward=4.0, communication=6.0 + extra) for each in range(2)]
        outcomes += [
            run(make_outcome, 1, 10.0 + extra, [rank(backward=10.0 + extra)], repeat),
            run(make_outcome, 2, 10.0 + extra, slow, repeat),
        ]
    [loss] = budget_of(outcomes).losses
    assert [cause.cause for cause in loss.causes if cause.is_gain] == ["compute"]
    assert [cause.cause for cause in loss.named] == ["communication"]


def observed(make_outcome, nodes, not_split=None, ranks=(), **changes):
    one = run(make_outcome, nodes, 10.0, ranks)
    section = {"starts_at": "data_request", "not_split": not_split}
    return replace(one, metrics={**one.metrics, "observed": section}, **changes)


def missing(outcomes, clock):
    found = find_missing_parts(summarise_runs(outcomes)[1], clock)
    return [(each.nodes, each.n, each.reason) for each in found]


def test_the_reason_for_missing_parts_is_that_of_the_measurement(make_outcome):
    outcomes = [
        observed(make_outcome, 1, ranks=[rank(forward=10.0)]),
        observed(make_outcome, 2, "steps under 20 ms are not split"),
        observed(make_outcome, 2, "steps under\n20 ms are not split", repeat=2),
        observed(make_outcome, 4, 7),
        observed(make_outcome, 8, "x" * 300),
        observed(make_outcome, 16, status="Failed"),
    ]
    one, four, eight = missing(outcomes, "observed")
    assert one == (2, 2, "steps under 20 ms are not split")
    assert four[:2] == (4, 1) and "do not sum" in four[2]
    assert eight == (8, 1, "x" * 200)


@pytest.mark.parametrize(
    ("clock", "kind", "n"),
    [
        ("program", "aws", 2),
        ("logged", "emulated", 2),
        ("projected", "emulated", 2),
        ("program", "simulated", 0),
        ("measured", "measured", 0),
        ("training_phase", "aws", 0),
        (None, "aws", 0),
    ],
)
def test_a_time_of_the_programs_own_is_not_split(make_outcomes, clock, kind, n):
    given = {"train_clock": "program", "platform_kind": kind}
    found = missing(make_outcomes({1: 10.0, 2: 5.0}, **given), clock)
    assert [nodes for nodes, _, _ in found] == [1, 2][:n]
    assert len({reason for _, _, reason in found}) == min(1, n)


def test_a_program_may_split_its_own_time(make_outcome):
    clock = {"train_clock": "program", "train_seconds_by": {"program": 10.0}}
    split, short, without = (
        replace(run(make_outcome, nodes, 10.0, ranks), **clock)
        for nodes, ranks in ((1, [rank(forward=10.0)]), (2, [rank(forward=5.0)]), (4, []))
    )
    reason = "steps under 20 ms are not split"
    outcomes = [split, short, replace(without, metrics={"not_split": reason})]
    two, four = missing(outcomes, "program")
    assert two[:2] == (2, 1) and "do not sum" in two[2]
    assert four == (4, 1, reason)
    assert [count.nodes for count in budget_of(outcomes).counts] == [1]


def test_without_an_efficiency_there_is_no_loss(make_outcome):
    """Another count has only the time of the platform's phase, so that all counts use that
    clock."""
    both = {"observed": 10.0, "training_phase": 10.0}
    observed = [
        replace(run(make_outcome, nodes, 10.0, [rank(forward=10.0)]), train_seconds_by=both)
        for nodes in (1, 2)
    ]
    phase = {"train_clock": "training_phase", "train_seconds_by": {"training_phase": 10.0}}
    found = budget_of([*observed, make_outcome(4, 10.0, **phase)])
    assert ([count.nodes for count in found.counts], found.losses) == ([1, 2], ())


def test_each_run_has_its_own_parts(make_outcome):
    """10 s and 12 s of compute, of which 1 s each is data wait."""
    (count,) = budget_of(
        [
            run(make_outcome, 1, seconds, [rank(backward=seconds - 1, data=1.0)], repeat)
            for repeat, seconds in ((1, 10.0), (2, 12.0))
        ]
    ).counts
    by_run = {part.name: part.by_run for part in count.parts}
    assert by_run["backward"] == pytest.approx((9, 11))
    assert by_run["data"] == pytest.approx((1, 1))


def test_the_passes_of_one_node_are_the_means_of_the_runs_that_timed_them(make_outcome):
    def timed(repeat, *seconds):
        entries = [
            {"samples": samples, "seconds": each}
            for samples, each in zip((64, 16, 8), seconds, strict=False)
        ]
        own = metrics(rank(forward=6.0, backward=4.0)) | {
            "passes": entries,
            "passes_seconds": 2.0,
            "steps": 20,
            "batch": {"global_batch_size": 64},
        }
        return replace(run(make_outcome, 1, 10.0, [rank()], repeat), metrics=own)

    first = timed(1, [0.4] * 3, [0.1] * 3, [0.06] * 3)
    second = timed(2, [0.4] * 3, [0.11, 0.12, 0.13])
    untimed = run(make_outcome, 1, 10.0, [rank(forward=6.0, backward=4.0)], 3)
    [count] = budget_of([first, second, untimed]).counts
    [passes] = count.passes  # one run lacks the batch of 8
    assert (passes.samples, passes.ratio) == (16, pytest.approx((0.25 + 0.3) / 2))
    assert passes.error == pytest.approx(1.25 * 0.025 / 3**0.5 / 0.3 / 2)
    assert passes.whole == pytest.approx(0.8)  # 0.4 s of 0.5 s
    [none] = budget_of([untimed]).counts
    assert none.passes == () and "passes" not in none.model_dump()
