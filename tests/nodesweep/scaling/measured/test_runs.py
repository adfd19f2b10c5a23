"""Folders with a metrics.json each: the values read from them, and every refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.analysis.step_budget import find_step_budget
from nodesweep.scaling.measured.runs import (
    MeasuredRunsError,
    RunFiles,
    nodes_in_name,
    read_runs,
)
from nodesweep.scaling.outcome.outcome import JobOutcome
from tests.nodesweep.scaling.analysis.test_step_budget import rank


def metrics(seconds: float = 9.0, world: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"schema_version": 1, "train_seconds": seconds, "world": {"world_size": world}} | more


def run(place: str, seconds: float = 9.0, world: int | None = None, **more: Any) -> RunFiles:
    world = world or next(iter(nodes_in_name(place)), 1)
    return RunFiles(place, json.dumps(metrics(seconds, world, **more)).encode())


def observed(place: str, world: int, *hosts: str | None, batch: Any = 16) -> Any:
    """Return the files of a run that nodesweep observed, with a file for each rank from 1 on."""
    ranks = [
        rank(number, forward=6.0, communication=2.0 if world > 1 else 0.0, start=1.0)
        | {"node": hosts[number] if hosts else None}
        for number in range(world)
    ]
    more = {
        "observed": {"batch_size": batch},
        "budget": ranks[:1],
        "run_start_unix_seconds": 1e9 + world,
    }
    seconds = 9.0 if world > 1 else 7.0
    content = json.dumps(metrics(seconds, world, **more)).encode()
    return RunFiles(place, content, [json.dumps(each).encode() for each in ranks[1:]])


def refusal(*runs: RunFiles) -> str:
    with pytest.raises(MeasuredRunsError) as refused:
        read_runs(runs)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("n4-r1", {4}),
        ("nodes=16/repeat=2", {16}),
        ("Nodes_2", {2}),
        ("a100-8n", {8}),
        ("4-nodes.b", {4}),
        ("node3", {3}),
        ("run4", set()),
        ("sun4", set()),
        ("2026-11-27", set()),
        ("n0", set()),
        ("n2/n4", {2, 4}),
        ("n08", {8}),
        ("node003", set()),  # a host
        ("n4/node-0012", {4}),
        ("004n", set()),
        ("run-1-nodes-4", {1, 4}),
        ("resnet-50-nodes=4", {4}),
        ("1-nodes4", {4}),
        ("4n-1", {4}),
    ],
)
def test_node_counts_in_names(name: str, nodes: set[int]) -> None:
    assert nodes_in_name(name) == nodes


def test_runs_are_outcomes_in_the_order_of_their_starts() -> None:
    found = read_runs(
        [
            run("n2-b", 5.0, run_start_unix_seconds=3e8),
            run("n2-a", 6.0, run_start_unix_seconds=4e8),
            run("n1", run_start_unix_seconds=2e8, final_metric={"name": "x", "value": 0.5}),
            RunFiles("n2-0", None),
        ],
        goal="maximize",
    )
    assert [(each.job_name, each.nodes, each.repeat, each.status) for each in found] == [
        ("n1", 1, 1, "Completed"),
        ("n2-b", 2, 1, "Completed"),
        ("n2-a", 2, 2, "Completed"),
        ("n2-0", 2, 3, "Failed"),
    ]
    first, *_, failed = found
    assert (first.train_clock, first.clocks.train_seconds, first.platform_kind) == (
        "program",
        9.0,
        "measured",
    )
    assert first.created_at is not None and first.final_metric is not None
    assert (first.final_metric.goal, failed.is_failure) == ("maximize", True)


def test_starts_that_one_run_lacks_order_nothing() -> None:
    found = read_runs(
        [
            run("n2-a", 6.0, run_start_unix_seconds=4e8),
            run("n2-b", 5.0, run_start_unix_seconds=3e8),
            run("n1", run_start_unix_seconds=1e300, final_metric=0.5),
        ],
        goal="minimize",
    )
    assert [each.job_name for each in found] == ["n1", "n2-a", "n2-b"]
    assert {each.created_at for each in found} == {None}
    assert found[0].final_metric is not None and found[0].final_metric.goal == "minimize"


def test_the_node_count_may_be_in_the_file() -> None:
    given: list[tuple[Any, ...]] = [
        ("a", {"world_size": 8, "nodes": 2}),
        ("b", {"world_size": 8, "processes_per_node": 8}),
    ]
    files = [
        RunFiles(
            place, json.dumps(metrics(len(place) + seconds, world=None) | {"world": world}).encode()
        )
        for seconds, (place, world) in enumerate(given)
    ]
    found = read_runs(files)
    assert [(each.nodes, each.world_size) for each in found] == [(1, 8), (2, 8)]


def test_the_node_count_may_be_that_of_the_ranks() -> None:
    """Ray Train does not state how many nodes it uses, but every rank knows its own."""
    found = read_runs([observed("a", 1, "0"), observed("b", 6, *"001122")])
    assert [each.nodes for each in found] == [1, 3]
    uneven = refusal(observed("a", 1, "0"), observed("b", 3, *"010"))
    assert "the number of processes (3) is not divisible by the number of nodes (2)" in uneven
    unknown = refusal(observed("a", 1, "0"), observed("b", 2, "0", None))
    assert "b: the node count is unknown" in unknown


def test_a_name_overrides_the_launchers_count_of_groups_or_pods() -> None:
    """torchrun can run once per GPU, and several pods can share a node."""
    groups = json.dumps(metrics() | {"world": {"world_size": 8, "processes_per_node": 1}})
    found = read_runs([RunFiles("n1", groups.encode()), run("n2", 8.0, world=8)])
    assert [each.nodes for each in found] == [1, 2]
    found = read_runs([observed("n1", 1), observed("n2", 8, *"01234567")])
    assert [each.nodes for each in found] == [1, 2]


def test_a_run_whose_program_ended_with_an_error_is_a_failed_one() -> None:
    reason = {"not_measured": "the program ended with RuntimeError", "error": "RuntimeError"}
    failed = RunFiles("n2-r2", json.dumps({"schema_version": 1, "observed": reason}).encode())
    found = read_runs([observed("n1", 1), observed("n2-r1", 2), failed])
    assert [each.status for each in found] == ["Completed", "Completed", "Failed"]
    assert found[2].reason == "the program ended with RuntimeError"


def steps(outcomes: list[JobOutcome]) -> Any:
    return find_step_budget(*summarise_runs(outcomes))


def test_parts_waits_and_batches_of_observed_runs() -> None:
    files = [
        observed("n1", 2, "a.x", "a.x"),
        observed("n2", 4, "b", "b", "c", "c", batch=8),
    ]
    found = read_runs(files)
    assert [each.batch_policy for each in found] == ["fixed_global"] * 2
    assert [each.global_batch_size for each in found] == [32, 32]
    assert found[0].train_clock == "observed"
    named = [[each["node"] for each in outcome.metric("budget")] for outcome in found]
    assert named == [["algo-1", "algo-1"], ["algo-1", "algo-1", "algo-2", "algo-2"]]
    assert [count.nodes for count in steps(found).counts] == [1, 2]


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        ((), ["algo-1", "algo-1", "algo-2", "algo-2"]),
        (("a", "a", "a", "a"), [None] * 4),  # one host can't be two nodes
        (("a", "b", None, "b"), ["algo-1", "algo-2", None, "algo-2"]),
    ],
)
def test_nodes_of_ranks_without_useful_names(hosts: Any, named: list[str | None]) -> None:
    found = read_runs([observed("n1", 1), observed("n2", 4, *hosts)])
    assert [each["node"] for each in found[1].metric("budget")] == named


def test_a_growing_batch_and_one_that_follows_no_policy() -> None:
    def policy(**batches: Any) -> str | None:
        files = [observed(place, int(place[1]), batch=size) for place, size in batches.items()]
        return read_runs(files)[0].batch_policy

    assert policy(n1=16, n2=16) == "fixed_per_replica"
    assert policy(n1=16, n2=7) is None
    assert policy(n1=16, n2=None) is None
    unknown = [run(f"n{nodes}", nodes, batch={"global_batch_size": nodes}) for nodes in (1, 2)]
    files = [
        each._replace(metrics=each.metrics.replace(b'"world_size"', b'"x"')) for each in unknown
    ]  # type: ignore[union-attr]
    assert read_runs(files)[0].batch_policy is None


def test_ranks_of_an_unknown_world_have_no_node() -> None:
    files = [observed("n1", 1), observed("n2", 2)]
    files[1] = files[1]._replace(metrics=files[1].metrics.replace(b'"world_size"', b'"x"'))
    assert {each["node"] for each in read_runs(files)[1].metric("budget")} == {None}


def test_runs_that_began_together_or_took_as_long_are_repeats() -> None:
    found = read_runs(
        [
            run("n1-a", 9.0, run_start_unix_seconds=1e9),  # one node writes one file
            run("n1-b", 9.01, run_start_unix_seconds=1e9),
            run("n2-a", 5.0, run_start_unix_seconds=2e9),
            run("n2-b", 5.1, run_start_unix_seconds=2e9),
            run("n2-c", 5.0, run_start_unix_seconds=2e9 + 1),
            run("n4-a", 5.0, run_start_unix_seconds=2e9, steps=[1, 2]),
            RunFiles("n4-b", None),
        ]
    )
    assert [each.repeat for each in found] == [1, 2, 1, 2, 3, 1, 2]


@pytest.mark.parametrize(
    "runs",
    [
        [RunFiles("n1", b'{"train_seconds": 9')],
        [RunFiles("n1", b"\xff\xfe")],
        [RunFiles("n1", b"[" * 100 + b"]" * 100)],
        [RunFiles("n1", b"[1]")],
        [RunFiles("n1", b'{"observed": {"not_measured": "no step was\\nseen\\u001b"}}')],
        [RunFiles("n1", b'{"train_seconds": "\\u001b[31m"}'), run("n2", -1.0)],
        [run("n4", world=2)],
        [run("first"), RunFiles("n4-n8", None)],
        [run("n4", world=8)._replace(place="n2/n4")],
        [RunFiles("n4", json.dumps(metrics() | {"world": {"nodes": 2}}).encode())],
        [RunFiles("n2000000", None)],
        [run("n1", final_metric={"name": "loss"}), run("n2", final_metric={"name": "accuracy"})],
        [run("n1", observed={"torch": "2.12"}), run("n2", observed={"torch": "2.13"})],
        [run("n1"), run("n2", 5.0), run("n2-copy", 5.0)],
        [run("n1"), *(run(f"n2-{at}", 5.0, run_start_unix_seconds=5.0) for at in "ab")],
        [
            run("n1", run_start_unix_seconds=4.0),
            *(
                run(f"n4/host{at}", 5 + n / 100, run_start_unix_seconds=5 + n * 0.003)
                for n, at in enumerate("abcd")
            ),
        ],
        [observed("n1", 1), run("n2", 8.0)],
        [run("n3", world=8)],
        [run("n1", world=10**12), run("n2", observed={"batch_size": 1e308})],
        [run("n1", 9.0), run("n1-b", 8.0)],
        [RunFiles("n1", None), RunFiles("n2", None)],
        [run("n1"), run("n2", 8.0), run("n2-b", 7.0, world=4)],
    ],
    ids=[
        "cut off",
        "UTF-16",
        "deep",
        "a list",
        "not measured",
        "no times",
        "fewer processes than nodes",
        "no and two counts",
        "two counts in a path",
        "file and name differ",
        "too many nodes",
        "two metrics",
        "two torches",
        "a copy",
        "a copy by its start",
        "one run on four hosts",
        "two clocks",
        "a host's number",
        "too large",
        "one count",
        "all failed",
        "two worlds at a count",
    ],
)
def test_refusals(runs: list[RunFiles], snapshot: Any) -> None:
    said = refusal(*runs)
    assert said == snapshot
    assert "\x1b" not in said
