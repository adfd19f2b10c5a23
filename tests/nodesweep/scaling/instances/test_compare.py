"""The arm that answers each question, and the arms on the time-cost front."""

from __future__ import annotations

from dataclasses import replace

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.instances.arms import outcomes_by_arm
from nodesweep.scaling.instances.compare import (
    choose_cells,
    front_by_cell,
    judge_cells,
    surely_dominated,
)
from nodesweep.scaling.instances.progress import lacks_sound_runs
from nodesweep.scaling.outcome.outcome import Clocks
from tests.nodesweep.scaling.instances.conftest import (
    CHEAP,
    FAST,
    SECONDS,
    UNPRICED,
    all_runs,
    cell,
    run,
)


def judged(config, outcomes):
    rows = {
        arm: summarise_runs(own, price_of(load_catalogue().get(arm.name), "us-east-1"))[0]
        for arm, own in outcomes_by_arm(config, outcomes).items()
    }
    return judge_cells(config, rows)


def chosen(config, outcomes):
    """Return (type, nodes) and the reason of each answer."""
    return [
        ((answer.instance_type, answer.nodes), answer.reason)
        for answer in choose_cells(config, judged(config, outcomes))
    ]


def test_the_cheapest_within_the_deadline(types_config, snapshot):
    config = types_config({"deadline_seconds": 1500})
    [(arm, reason)] = chosen(config, all_runs())
    assert arm == (CHEAP, 4)
    assert reason == snapshot


def test_a_shorter_deadline_takes_the_faster_type(types_config):
    [(arm, _)] = chosen(types_config({"deadline_seconds": 800}), all_runs())
    assert arm == (FAST, 2)


def test_the_fastest_within_the_budget(types_config, snapshot):
    [(arm, reason)] = chosen(types_config({"budget_usd_per_run": 0.3}), all_runs())
    assert arm == (CHEAP, 4)
    assert reason == snapshot


def test_both_limits_ask_both_questions(types_config):
    goals = {"deadline_seconds": 2500, "budget_usd_per_run": 0.3}
    config = types_config(goals)
    answers = choose_cells(config, judged(config, all_runs()))
    assert [answer.question for answer in answers] == [
        "cheapest_within_deadline", "fastest_within_budget"
    ]  # fmt: skip
    assert [(answer.by, answer.nodes) for answer in answers] == [("cost", 2), ("time", 4)]


def test_without_limits_the_cheapest_of_what_each_type_recommends(types_config, snapshot):
    [(arm, reason)] = chosen(types_config(), all_runs())
    assert arm == (CHEAP, 4)
    assert reason == snapshot


def test_one_count_of_each_type_is_compared_too(types_config):
    config = types_config(node_counts=[1])
    [(arm, _)] = chosen(config, [run(name, 1, repeat) for name, _ in SECONDS for repeat in (1, 2)])
    assert arm == (CHEAP, 1)


def test_no_arm_in_time_says_what_the_fastest_lacks(types_config, snapshot):
    [(arm, reason)] = chosen(types_config({"deadline_seconds": 60}), all_runs())
    assert arm == (None, None)
    assert reason == snapshot


def test_a_contended_arm_is_not_chosen_nor_ruled_out_and_on_no_front(types_config):
    config = types_config()
    contended = {"attained_percent": 80.0}
    outcomes = [
        replace(each, utilisation=contended)
        if (each.instance_type, each.nodes) == (CHEAP, 4)
        else each
        for each in all_runs()
    ]
    [(arm, _)] = chosen(config, outcomes)
    assert arm == (CHEAP, 2)
    answers = {each.cell: each.answer for each in judged(config, outcomes)}
    assert answers[cell(CHEAP, 4)] == "undecided"
    assert front_by_cell(judged(config, outcomes))[cell(CHEAP, 4)] is False
    assert lacks_sound_runs(config, outcomes) and not lacks_sound_runs(config, all_runs())


def test_an_arm_that_may_pass_is_named(types_config, snapshot):
    # 2 x the cheap type takes 32 min 50 s from submission to end, give or take 1%
    config = types_config({"deadline_seconds": 1975})
    [(arm, reason)] = chosen(config, all_runs())
    assert arm == (CHEAP, 4)
    assert reason == snapshot


def test_three_cells_that_may_pass_are_named_without_their_reasons(types_config):
    outcomes = [
        replace(each, utilisation={"attained_percent": 80.0})
        if each.instance_type == CHEAP
        else each
        for each in all_runs()
    ]
    [(arm, reason)] = chosen(types_config({"deadline_seconds": 9000}), outcomes)
    assert arm[0] == FAST
    names = ", ".join(f"{nodes} x {CHEAP}" for nodes in (1, 2)) + f" and 4 x {CHEAP}"
    assert f"; {names} are not ruled out" in reason
    assert "contended" not in reason


def test_nothing_passes_and_one_is_open(types_config, snapshot):
    config = types_config({"deadline_seconds": 1325}, node_counts=[1])
    runs = [run(FAST, 1, repeat) for repeat in (1, 2, 3)]
    [(arm, reason)] = chosen(config, runs)
    assert arm == (None, None)
    assert reason == snapshot


def test_types_without_a_price_are_ranked_by_time(types_config, snapshot):
    types = (CHEAP, UNPRICED)
    config = types_config({"deadline_seconds": 9000}, types=types)
    runs = [run(UNPRICED, nodes, types=types) for nodes in (1, 2)]
    [(arm, reason)] = chosen(config, runs)
    assert arm[0] == UNPRICED
    assert reason == snapshot
    [(arm, reason)] = chosen(config, [*runs, run(CHEAP, 1, types=types)])
    assert arm == (CHEAP, 1)
    assert reason == snapshot


def test_arms_within_each_other_s_interval_are_not_told_apart(types_config, snapshot):
    config = types_config({"deadline_seconds": 9000}, node_counts=[1])
    near = [
        run(name, 1, repeat, train_seconds=seconds * (0.98, 1.0, 1.02)[repeat - 1])
        for name, seconds in ((CHEAP, 4000.0), (FAST, 960.0))
        for repeat in (1, 2, 3)
    ]
    [(_, reason)] = chosen(config, near)
    assert reason == snapshot
    config = types_config({"budget_usd_per_run": 9}, node_counts=[1])
    same = [run(name, 1, repeat, train_seconds=900.0 + repeat) for name in (CHEAP, FAST)
            for repeat in (1, 2, 3)]  # fmt: skip
    [(arm, reason)] = chosen(config, same)
    assert arm == (CHEAP, 1)
    assert reason == snapshot


def test_a_type_that_trains_another_model_is_no_answer(types_config, snapshot):
    config = types_config({"deadline_seconds": 800})
    metric = {"metrics": {"final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"}}}
    worse = {"metrics": {"final_metric": {"name": "accuracy", "value": 0.5, "goal": "maximize"}}}
    runs = [
        run(name, nodes, repeat, **(metric if name == CHEAP else worse))
        for name, nodes in SECONDS
        for repeat in (1, 2, 3)
    ]
    arms = judged(config, runs)
    fast = [each for each in arms if each.cell.arm.name == FAST]
    assert {each.answer for each in fast} == {"fail"}
    assert fast[0].judged.problems[0] == snapshot
    assert not any(front_by_cell(arms)[each.cell] for each in fast)


def test_the_front_is_what_nothing_beats_on_both(types_config):
    arms = judged(types_config(), all_runs())
    front = front_by_cell(arms)
    assert [arm for arm, is_on in front.items() if is_on] == [
        cell(CHEAP, 1), cell(CHEAP, 2), cell(CHEAP, 4), cell(FAST, 2), cell(FAST, 4)
    ]  # fmt: skip
    assert surely_dominated(arms) == {cell(FAST, 1)}


def test_an_unknown_cost_is_on_no_front(types_config):
    types = (CHEAP, UNPRICED)
    arms = judged(
        types_config(types=types), [run(CHEAP, 1, types=types), run(UNPRICED, 1, types=types)]
    )
    assert front_by_cell(arms) == {cell(CHEAP, 1): True}
    assert surely_dominated(arms) == set()


def test_nothing_measured_answers_nothing(types_config, snapshot):
    failed = [run(CHEAP, 1, train_seconds=None)]
    assert judged(types_config({"deadline_seconds": 9}), failed) == []
    [(arm, reason)] = chosen(types_config(), failed)
    assert arm == (None, None)
    assert reason == snapshot


def test_a_type_with_the_same_metric_and_a_count_that_fails_its_own_limits(types_config):
    metric = {"metrics": {"final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"}}}
    slow = {(CHEAP, 4): {"train_seconds": 1800.0}}
    runs = [run(*arm, **metric, **slow.get(arm, {})) for arm in SECONDS]
    arms = {each.cell: each.answer for each in judged(types_config(), runs)}
    assert arms[cell(CHEAP, 4)] == "fail" and arms[cell(FAST, 4)] == "pass"
    [(arm, _)] = chosen(types_config(), runs)
    assert arm == (CHEAP, 2)


def test_arms_whose_nodes_each_did_all_of_the_work_are_not_chosen(types_config, snapshot):
    config, outcomes = types_config({"deadline_seconds": 1500}), all_runs()
    rows = {
        arm: summarise_runs(own, price_of(load_catalogue().get(arm.name), "us-east-1"))[0]
        for arm, own in outcomes_by_arm(config, outcomes).items()
    }
    arms = judge_cells(config, rows, repeated=[cell(CHEAP, 4)])
    [answer] = choose_cells(config, arms)
    assert (answer.instance_type, answer.nodes) != (CHEAP, 4)
    [repeated] = [each for each in arms if each.cell == cell(CHEAP, 4)]
    assert repeated.judged.problems == snapshot


def test_combinations_with_different_batches_and_no_metric_are_no_answer(types_config, snapshot):
    def runs(batch, **fields):
        return [
            run(name, nodes, repeat, global_batch_size=batch(name, nodes), **fields)
            for name, nodes in SECONDS
            for repeat in (1, 2, 3)
        ]

    def growing(name, nodes):
        return 64 * nodes

    config = types_config()
    arms = judged(config, runs(growing))
    assert {each.answer for each in arms} == {"fail"}
    assert not any(front_by_cell(arms).values())
    [(arm, reason)] = chosen(config, runs(growing))
    assert arm == (None, None) and reason == snapshot
    # per type constant, but the types have different numbers of processes
    [(arm, _)] = chosen(config, runs(lambda name, nodes: 64 if name == CHEAP else 256))
    assert arm == (None, None)
    [(arm, _)] = chosen(config, runs(lambda name, nodes: 64))
    assert arm != (None, None)
    metric = {"metrics": {"final_metric": {"name": "loss", "value": 0.4, "goal": "minimize"}}}
    [(arm, _)] = chosen(config, runs(growing, **metric))
    assert arm != (None, None)
    policy = {"batch_policy": "fixed_per_replica"}
    [(arm, _)] = chosen(config, runs(lambda name, nodes: None, **policy))
    assert arm == (None, None)


def failed_attempts(name, nodes, times, billable=900.0):
    clocks = Clocks(billable_seconds=billable, submit_to_end_seconds=billable + 60)
    return [
        run(name, nodes, train_seconds=None, attempt=at + 2, clocks=clocks) for at in range(times)
    ]


def test_an_arm_whose_jobs_mostly_fail_is_neither_cheapest_nor_fastest(types_config, snapshot):
    for goals in ({"deadline_seconds": 1500}, {"budget_usd_per_run": 0.3}, {}):
        config = types_config(goals)
        assert chosen(config, all_runs())[0][0] == (CHEAP, 4)
        [(arm, reason)] = chosen(config, [*all_runs(), *failed_attempts(CHEAP, 4, 6)])
        assert arm != (CHEAP, 4)
        assert reason == snapshot


def test_a_result_of_an_arm_costs_its_failed_attempts_too(types_config, snapshot):
    config = types_config({"deadline_seconds": 3000}, node_counts=[4])
    many = [run(name, 4, at % 5 + 1) for name in (CHEAP, FAST) for at in range(20)]
    assert chosen(config, many)[0][0] == (CHEAP, 4)
    # 10 failed attempts of 2,000 s: 1,010 + 1,000 s x 4 x $0.23/h, against 390 s x 4 x $0.922/h
    outcomes = [*many, *failed_attempts(CHEAP, 4, 10, billable=2000.0)]
    [(arm, reason)] = chosen(config, outcomes)
    assert arm == (FAST, 4)
    assert reason == snapshot
    arms = judged(config, outcomes)
    assert front_by_cell(arms) == {cell(CHEAP, 4): False, cell(FAST, 4): True}
    assert surely_dominated(arms) == set()
    assert [each.numbers for each in arms] == snapshot
