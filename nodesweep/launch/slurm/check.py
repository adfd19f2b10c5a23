"""Rules about the cluster before a run: the shared folder, and the partitions, from one sinfo."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nodesweep.configs.atomic import folder_problem
from nodesweep.launch.slurm.commands import CommandFailed, run
from nodesweep.launch.slurm.launcher import section_of
from nodesweep.scaling.formats import join_words, nodes_text
from nodesweep.scaling.rules.rule import Facts, Findings

_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True)
class Partition:
    """A partition as sinfo describes it; None is no limit, or an unknown one.

    Attributes:
        is_up: whether it starts jobs.
        time_seconds: the longest time limit of a job.
        job_nodes: the most nodes of a job.
        nodes: its nodes.
        usable: its nodes that are neither down nor drained.
        cores: the fewest CPUs of a node.
    """

    is_up: bool
    time_seconds: float | None
    job_nodes: int | None
    nodes: int
    usable: int
    cores: int | None


def check_cluster(facts: Facts) -> Findings:
    """Return what keeps the sweep from running in its folder and partition."""
    found, platform = _check_partitions(facts), section_of(facts.config.platform)
    root = Path(platform.folder)
    folder = folder_problem(root) or folder_problem(root / platform.prefix)
    problems = [] if folder is None else [f"platform.folder: {folder}"]
    return replace(found, problems=(*problems, *found.problems))


def _check_partitions(facts: Facts) -> Findings:
    try:
        text = run(["sinfo", "--all", "--noheader", "--format=%P|%a|%l|%s|%F|%c"])
    except CommandFailed as error:
        return Findings((f"platform: the cluster does not answer: {error}",))
    partitions, default = read_partitions(text)
    wanted = section_of(facts.config.platform).partition or default
    if wanted is None:
        known = join_words(sorted(partitions)) or "none"
        return Findings(
            (f"platform.partition: not set, and the cluster has no default; use one of: {known}",)
        )
    problems: list[str] = []
    notices: list[str] = []
    for name in wanted.split(","):
        if name not in partitions:
            known = join_words(sorted(partitions)) or "none"
            problems.append(
                f"platform.partition: the cluster has no partition {name!r}; use one of: {known}"
            )
            continue
        problems += _problems(facts, name, partitions[name])
        notices += _notices(facts, name, partitions[name])
    return Findings(tuple(problems), tuple(notices))


def _problems(facts: Facts, name: str, partition: Partition) -> Iterator[str]:
    most, seconds = facts.max_nodes, facts.training.max_runtime_seconds
    if not partition.is_up:
        yield f"platform.partition: {name} is down; use another one, or wait"
    limit = min(partition.nodes, partition.job_nodes or partition.nodes)
    if most > limit:
        yield (
            f"sweep.node_counts: {nodes_text(most)} in one job, but {name} allows {limit}; leave"
            " the larger counts out, or use another platform.partition"
        )
    if partition.time_seconds is not None and seconds > partition.time_seconds:
        yield (
            f"training.max_runtime_seconds: got {seconds}, but the limit of {name} is"
            f" {partition.time_seconds:.0f} s; lower it, or use another platform.partition"
        )


def _notices(facts: Facts, name: str, partition: Partition) -> Iterator[str]:
    if partition.usable < facts.max_nodes <= partition.nodes:
        yield (
            f"platform.partition: only {nodes_text(partition.usable)} of {name} are neither down"
            f" nor drained, so jobs on {facts.max_nodes} wait"
        )
    cores = facts.instance.vcpus
    if partition.cores is not None and cores is not None and cores > partition.cores:
        yield (
            f"platform.node.cores: got {cores:g}, but {name} has nodes of {partition.cores} CPUs"
        )


def read_partitions(text: str) -> tuple[Mapping[str, Partition], str | None]:
    """Read sinfo's lines, one for each kind of node in a partition; other lines are ignored.

    Returns:
        The partitions by name, and the name of the default one.
    """
    found: dict[str, Partition] = {}
    default = None
    for line in text.splitlines():
        cells = line.strip().split("|")
        counts = cells[4].split("/") if len(cells) == 6 else []
        if len(counts) != 4 or not all(each.isdecimal() for each in counts):
            continue
        label, up, time, size, _, cpus = cells
        name = label.removesuffix("*")
        default = name if label.endswith("*") else default
        busy, idle, _, total = map(int, counts)
        largest = size.rpartition("-")[2]
        cores = int(match[0]) if (match := re.match(r"\d+", cpus)) else None
        before = found.get(name)
        if before is not None:
            busy, total = busy + before.usable, total + before.nodes
            cores = min(filter(None, (cores, before.cores)), default=None)
        found[name] = Partition(
            up == "up",
            _seconds(time),
            int(largest) if largest.isdecimal() else None,
            total,
            busy + idle,
            cores,
        )
    return found, default


def _seconds(limit: str) -> float | None:
    """Return the seconds of DAYS-HH:MM:SS; None for `infinite` and anything else."""
    match = _TIME.fullmatch(limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return math.fsum((days * 86_400, hours * 3600, minutes * 60, seconds))
