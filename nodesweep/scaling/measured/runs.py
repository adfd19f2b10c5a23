"""Read runs that nodesweep did not start as JobOutcomes, each from a folder with a metrics.json.

docs/measured-tables.md describes the folders for users. The node count comes from the file or from
the folder's name, and repeats are numbered in the order in which they started.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

from nodesweep.scaling.formats import join_words
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.measured.columns import COLUMNS
from nodesweep.scaling.measured.table import table_problems
from nodesweep.scaling.measured.text import MeasuredTableError
from nodesweep.scaling.outcome.metrics_file import UnusableMetrics, parse_metrics
from nodesweep.scaling.outcome.metrics_values import (
    nested_value,
    positive_or_none,
    whole_number_or_none,
)
from nodesweep.scaling.outcome.observed import is_observed, not_observed_reason
from nodesweep.scaling.outcome.outcome import JobOutcome, read_outcome

MAX_NODES = 1_000_000
_MOST = 10**9
_ONE_RUN_SECONDS, _ONE_RUN_SHARE = 1.0, 0.01
"""Two records of the same run differ by less than this in start and in relative duration."""
# a lookahead, so that matches overlap: 1-nodes-4 may mean 1 or 4
_NODES = re.compile(
    r"(?<![a-z0-9])(?=(?:n(?:odes?)?[-_=]?(?!0\d\d)(\d{1,7})"
    r"|(?!0\d\d)(\d{1,7})[-_]?n(?:odes?)?(?!=))(?![a-z0-9]))",
    re.I,
)
"""A node count in a name, such as n4, nodes-4, nodes=4, 4n or 4-nodes; node003 is a host."""
_UNTIL = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
# Values that are the same in all runs of one program, unless they are absent.
_SAME_PROGRAM: Mapping[str, tuple[str, ...]] = {
    "final_metric.name": ("final_metric", "name"),
    "observed.torch": ("observed", "torch"),
    "schema_version": ("schema_version",),
}


class MeasuredRunsError(MeasuredTableError):
    """The runs cannot be used. `problems` lists every problem; the message shows the first 20."""

    what = "runs"


class RunFiles(NamedTuple):
    """The files of one run.

    `place` is the run's folder, relative to the folder of all runs. `metrics` is None if the run
    failed or has not ended. `budgets` are the files that break down the train time of each rank.
    """

    place: str
    metrics: bytes | None
    budgets: Sequence[bytes] = ()


class _Read(NamedTuple):
    place: str
    nodes: int
    metrics: dict[str, Any] | None
    started: float | None
    failure: str = "its folder has no metrics.json, so it failed or has not ended"


def nodes_in_name(name: str) -> set[int]:
    """Return the node counts in a folder's name, such as n4, nodes=4 or 4-nodes."""
    return {int(first or second) for first, second in _NODES.findall(name)} - {0}


def read_runs(runs: Sequence[RunFiles], goal: str | None = None) -> list[JobOutcome]:
    """Read runs as outcomes, ordered by node count and start.

    Args:
        runs: The runs.
        goal: Goal of the final metric, maximize or minimize, for files that don't set one.

    Raises:
        MeasuredRunsError: A run is invalid, or the runs don't belong together. `problems` lists
            every file with the reason.
    """
    read: list[_Read] = []
    problems: list[str] = []
    for run in sorted(runs, key=attrgetter("place")):
        try:
            read.append(_read(run))
        except MeasuredRunsError as error:
            problems += error.problems
    problems = problems or [*_mixed(read), *_copies(read)]
    if problems:
        raise MeasuredRunsError(*problems)
    in_order = all(each.started is not None for each in read if each.metrics is not None)
    read.sort(key=lambda each: (each.nodes, _begun(each, in_order)))
    taken: defaultdict[int, int] = defaultdict(int)
    outcomes = []
    for each in read:
        taken[each.nodes] += 1
        outcomes.append(_outcome(each, taken[each.nodes], goal, in_order))
    policy = _batch_policy(outcomes)
    outcomes = [replace(outcome, batch_policy=policy) for outcome in outcomes]
    if problems := table_problems(_rows(outcomes)):
        raise MeasuredRunsError(*problems)
    return outcomes


def _begun(run: _Read, in_order: bool) -> float:
    """Return the sort key for numbering repeats; runs without metrics come last.

    The key is the start of the run. If the start of any run is unknown, all keys are equal.
    """
    if run.metrics is None:
        return math.inf
    return run.started if in_order and run.started is not None else 0.0


def _read(run: RunFiles) -> _Read:
    if run.metrics is None:
        return _Read(run.place, _node_count(run.place, None), None, None)
    file = f"{run.place}/metrics.json"
    try:
        metrics = parse_metrics(run.metrics, run.budgets)
    except UnusableMetrics as error:
        raise MeasuredRunsError(f"{run.place}: {error}") from None
    except ValueError as error:
        raise MeasuredRunsError(
            f"{file}: damaged or truncated: not valid UTF-8 JSON ({error}); copy it again, or "
            "delete the folder"
        ) from None
    if not isinstance(metrics, dict):
        raise MeasuredRunsError(f"{file}: expected a JSON object, as nodesweep_clock.py writes it")
    if (reason := not_observed_reason(metrics)) is not None:
        reason = "".join(filter(str.isprintable, " ".join(reason.split())))
        if isinstance(nested_value(metrics, ("observed", "error")), str):
            return _Read(run.place, _node_count(run.place, None), None, None, reason)
        raise MeasuredRunsError(f"{file}: the program was not measured: {reason}")
    if positive_or_none(metrics.get("train_seconds")) is None:
        raise MeasuredRunsError(
            f"{file}: train_seconds is {str(metrics.get('train_seconds'))[:40]!r}; expected "
            "seconds above zero"
        )
    for path in (("world", "world_size"), ("observed", "batch_size")):
        if (whole_number_or_none(value := nested_value(metrics, path)) or 0) > _MOST:
            raise MeasuredRunsError(
                f"{file}: {'.'.join(path)} is {value:.6g}; allowed: at most {_MOST:,}"
            )
    nodes = _node_count(run.place, metrics)
    world = whole_number_or_none(nested_value(metrics, ("world", "world_size")))
    if world is not None and world < nodes:
        raise MeasuredRunsError(
            f"{file}: world.world_size is {world}; expected at least one process on each of the "
            f"{nodes} nodes"
        )
    if world is not None and world % nodes:
        raise MeasuredRunsError(
            f"{run.place}: the number of processes ({world}) is not divisible by the number of "
            f"nodes ({nodes}); run the same number on each, and name the folder after the run's "
            "node count, not after a host"
        )
    _name_nodes(metrics, nodes, world)
    started = positive_or_none(metrics.get("run_start_unix_seconds"))
    return _Read(
        run.place, nodes, metrics, started if started is not None and started < _UNTIL else None
    )


def _node_count(place: str, metrics: Mapping[str, Any] | None) -> int:
    """Return the node count from the file or from the folder's name.

    The name overrides the launcher's count, which is of groups of processes or of pods.

    Raises:
        MeasuredRunsError: The file and the name disagree, neither has a node count, or it exceeds
            MAX_NODES.
    """
    named = nodes_in_name(place)
    in_file = whole_number_or_none(nested_value(metrics, ("world", "nodes")))
    if not in_file and not named and metrics is not None:
        in_file = _launched_nodes(metrics)
    found = named | ({in_file} if in_file else set())
    if len(found) > 1:
        said = f"its file says {in_file} and " if in_file else ""
        raise MeasuredRunsError(
            f"{place}: {said}its name says {join_words(sorted(named))} nodes; name each folder "
            "after its run's node count, such as nodes=4"
        )
    if not found:
        raise MeasuredRunsError(
            f"{place}: the node count is unknown; name the folder after it, such as n4-r1 (4 "
            "nodes, repeat 1)"
        )
    [nodes] = found
    if nodes > MAX_NODES:
        raise MeasuredRunsError(f"{place}: {nodes} nodes; allowed: 1 to {MAX_NODES:,}")
    return nodes


def _launched_nodes(metrics: Mapping[str, Any]) -> int | None:
    """Return the node count according to the launcher, as the program or its ranks recorded it."""
    world, per_node = (
        whole_number_or_none(nested_value(metrics, ("world", name)))
        for name in ("world_size", "processes_per_node")
    )
    if world and per_node and world % per_node == 0:
        return world // per_node
    ranks = metrics.get("budget")
    nodes = [nested_value(each, ("node",)) for each in (ranks if isinstance(ranks, list) else ())]
    is_known = len(nodes) == world and all(isinstance(node, str) for node in nodes)
    return len({*nodes}) or None if is_known else None


def _name_nodes(metrics: Mapping[str, Any], nodes: int, world: int | None) -> None:
    """Rename the nodes in the breakdowns of the ranks to algo-1, algo-2, … in rank order.

    Without host names, each node is assumed to have consecutive ranks, as with torchrun.
    """
    written = metrics.get("budget")
    ranks = {
        rank: each
        for each in (written if isinstance(written, list) else ())
        if (rank := whole_number_or_none(nested_value(each, ("rank",)))) is not None
    }
    named = [ranks[rank].get("node") for rank in sorted(ranks)]
    hosts = list(dict.fromkeys(host for host in named if isinstance(host, str)))
    per_node = world // nodes if world else None
    for rank, host in zip(sorted(ranks), named, strict=True):
        place = None
        if len(hosts) == nodes and host in hosts:
            place = hosts.index(host)
        elif not hosts and per_node:
            place = rank // per_node
        ranks[rank]["node"] = None if place is None else f"algo-{place + 1}"


def _mixed(read: Sequence[_Read]) -> Iterator[str]:
    """Yield a problem for each value of _SAME_PROGRAM that differs between runs.

    The runs must also have been timed in the same way, by the program or by nodesweep.
    """
    for name, path in _SAME_PROGRAM.items():
        found: dict[str, str] = {}
        for each in read:
            value = nested_value(each.metrics, path)
            if isinstance(value, str | int):
                found.setdefault(" ".join(str(value).split())[:40], each.place)
        if len(found) > 1:
            said = join_words(f"{value!r} in {place}" for value, place in [*found.items()][:3])
            yield (
                f"{name} differs: {said}, so these runs can't be compared. Put the runs with each "
                "value into a separate folder"
            )
    timed = {is_observed(each.metrics): each.place for each in read if each.metrics is not None}
    if len(timed) > 1:
        yield (
            f"some runs were timed by the program ({timed[False]}), others by nodesweep "
            f"({timed[True]}), and their times can't be compared. Put each kind into a "
            "separate folder"
        )


def _copies(read: Sequence[_Read]) -> Iterator[str]:
    """Yield a problem for each run that is a copy or a second record of an earlier run."""
    first: dict[tuple[Any, ...], str] = {}
    seen: list[_Read] = []
    for each in read:
        if each.metrics is None:
            continue
        known: tuple[Any, ...] = (each.metrics["train_seconds"], repr(each.metrics.get("steps")))
        known = (*known, repr(each.metrics) if each.started is None else each.started)
        if (place := first.setdefault(known, each.place)) != each.place:
            yield f"{each.place}: the same run as {place}; delete one of them"
        elif other := next((other for other in seen if _is_one_run(each, other)), None):
            yield (
                f"{each.place}: started together with {other.place} and took equally long, so both "
                "seem to be the same run, timed on two of its nodes; keep only one"
            )
        seen.append(each)


def _is_one_run(a: _Read, b: _Read) -> bool:
    """Return True if two records seem to be of the same run, timed on two of its nodes."""
    if a.nodes != b.nodes or a.nodes == 1 or a.started is None or b.started is None:
        return False
    first, second = (nested_value(each.metrics, ("train_seconds",)) for each in (a, b))
    is_as_long = abs(first - second) < _ONE_RUN_SHARE * max(first, second)
    return is_as_long and abs(a.started - b.started) < _ONE_RUN_SECONDS


def _outcome(run: _Read, repeat: int, goal: str | None, is_dated: bool) -> JobOutcome:
    point: dict[str, Any] = {"nodes": run.nodes, "repeat": repeat, "attempt": 1}
    if run.metrics is None:
        job = JobStatus(
            run.place,
            "failed",
            reason=run.failure,
            nodes=run.nodes,
            platform_kind="measured",
        )
        return replace(read_outcome(job, None, **point), is_given=True)
    at = None
    if is_dated and run.started is not None:
        at = datetime.fromtimestamp(run.started, UTC)
    job = JobStatus(
        run.place, "completed", created_at=at, nodes=run.nodes, platform_kind="measured"
    )
    metrics = run.metrics
    final = metrics.get("final_metric")
    if goal is not None and final is not None:  # a user's file can have a bare number
        final = final if isinstance(final, dict) else {"value": final}
        metrics = {**metrics, "final_metric": {**final, "goal": final.get("goal") or goal}}
    outcome = read_outcome(job, metrics, **point, **_batch(metrics))
    return replace(outcome, is_given=True)


def _batch(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch sizes that nodesweep observed, which sizes in the metrics override."""
    world = whole_number_or_none(nested_value(metrics, ("world", "world_size")))
    each = whole_number_or_none(nested_value(metrics, ("observed", "batch_size")))
    if not world or not each:
        return {}
    return {"global_batch_size": each * world, "per_replica_batch_size": each}


def _batch_policy(outcomes: Sequence[JobOutcome]) -> str | None:
    """Infer the batch policy of the runs; return None if a batch is unknown or no policy fits."""
    done = [outcome for outcome in outcomes if outcome.completed]
    sizes = {outcome.global_batch_size for outcome in done}
    if None in sizes:
        return None
    if len(sizes) == 1:
        return "fixed_global"
    per_process = {
        None if outcome.world_size is None else outcome.global_batch_size / outcome.world_size
        for outcome in done
        if outcome.global_batch_size is not None
    }
    return "fixed_per_replica" if len(per_process) == 1 and None not in per_process else None


def _rows(outcomes: Sequence[JobOutcome]) -> Any:
    from pandas import DataFrame

    names = ("nodes", "repeat", "status", "world_size", "global_batch_size", "batch_policy")
    rows = [{name: getattr(outcome, name) for name in names} for outcome in outcomes]
    return DataFrame(rows, columns=list(COLUMNS), dtype=object)
