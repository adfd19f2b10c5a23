"""Rules about the cluster before a run: the shared folder, the partitions, the account and the QOS.

Each is judged by one call: sinfo, scontrol or sacctmgr.
"""

from __future__ import annotations

import getpass
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nodesweep.configs.atomic import folder_problem
from nodesweep.launch.slurm.commands import CommandFailed, run
from nodesweep.launch.slurm.launcher import section_of
from nodesweep.scaling.formats import join_words, nodes_text
from nodesweep.scaling.rules.rule import Facts, Findings, combine, merge_arms

_SETTING = re.compile(r"^(\w+) *= (.*?) *$", re.MULTILINE)
"""A line of `scontrol show config`."""
_QOS = re.compile(r"^partitionname=(\S+).*? qos=(\S+)", re.MULTILINE)
"""A partition and its QOS, in a line of `scontrol show partition` in lower case."""
_NODES = re.compile(r"\bnode=(\d+)")
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


class Association(NamedTuple):
    """An account of the user, in one partition or "" for all; all fields are sacctmgr's."""

    defaultaccount: str
    account: str
    partition: str
    qos: str
    defaultqos: str
    maxtres: str
    grptres: str
    maxwall: str


class Qos(NamedTuple):
    """A quality of service; all fields are sacctmgr's."""

    name: str
    flags: str = ""
    maxtres: str = ""
    grptres: str = ""
    maxwall: str = ""


def check_cluster(facts: Facts) -> Findings:
    """Return what keeps the sweep from running in its folder and partition."""
    platform = section_of(facts.config.platform)
    if len({each.config.platform for each in facts.each}) > 1:
        found = merge_arms({name: _check_partitions(own) for name, own in facts.arms.items()})
    else:
        found = _check_partitions(facts)
    root = Path(platform.folder)
    folder = folder_problem(root) or folder_problem(root / platform.prefix)
    problems = [] if folder is None else [f"platform.folder: {folder}"]
    return replace(found, problems=(*problems, *found.problems))


def _check_partitions(facts: Facts) -> Findings:
    try:
        text = run(["sinfo", "--all", "--noheader", "--format=%P|%a|%l|%s|%F|%c"])
    except CommandFailed as error:
        return Findings((f"platform: the cluster can't be queried: {error}",))
    partitions, default = read_partitions(text)
    wanted = section_of(facts.config.platform).partition or default
    if wanted is None:
        known = join_words(sorted(partitions)) or "none"
        return Findings(
            (f"platform.partition: not set, and the cluster has no default; use one of: {known}",)
        )
    problems: list[str] = []
    notices: list[str] = []
    accounts, flags = _check_accounting(facts, wanted.split(","))
    for name in wanted.split(","):
        if name not in partitions:
            known = join_words(sorted(partitions)) or "none"
            problems.append(
                f"platform.partition: the cluster has no partition {name!r}; use one of: {known}"
            )
            continue
        problems += _problems(facts, name, partitions[name], flags)
        notices += _notices(facts, name, partitions[name])
    return combine([Findings(tuple(problems), tuple(notices)), accounts])


def _problems(facts: Facts, name: str, partition: Partition, flags: str) -> Iterator[str]:
    """Yield what the partition refuses; the QOS's flags may lift its limits."""
    if not partition.is_up:
        yield f"platform.partition: {name} is not up; use another one, or wait"
    limit = None if "PartitionMaxNodes" in flags else partition.job_nodes
    seconds = None if "PartitionTimeLimit" in flags else partition.time_seconds
    limit = min(partition.nodes, limit or partition.nodes)
    yield from _above(facts, limit, seconds, name, "partition")


def _above(
    facts: Facts, nodes: int | None, seconds: float | None, of: str, field: str
) -> Iterator[str]:
    """Yield which of these limits of a job the sweep exceeds; None is no limit."""
    most, asked = facts.max_nodes, facts.training.max_runtime_seconds
    if nodes is not None and most > nodes:
        yield (
            f"sweep.node_counts: the largest job needs {nodes_text(most)}, but {of} allows"
            f" {nodes}; remove the larger counts, or use another platform.{field}"
        )
    if seconds is not None and asked > seconds:
        yield (
            f"training.max_runtime_seconds: got {asked}, but the limit of {of} is"
            f" {seconds:.0f} s; lower it, or use another platform.{field}"
        )


def _check_accounting(facts: Facts, partitions: Sequence[str]) -> tuple[Findings, str]:
    """Return what the accounting refuses, and the flags of the job's QOS.

    A partition's AllowAccounts and the like are left to sbatch, which refuses the first job for
    them: unlike a limit, they do not depend on its size.
    """
    platform = section_of(facts.config.platform)
    try:
        settings = dict(_SETTING.findall(run(["scontrol", "show", "config"])))
        enforced = settings.get("AccountingStorageEnforce", "none").split(",")
        if "associations" not in enforced:
            asked = [f"platform.{name}" for name in ("account", "qos") if getattr(platform, name)]
            why = "not checked, since the cluster enforces no accounts (AccountingStorageEnforce)"
            return Findings(notices=(f"{join_words(asked)}: {why}",) if asked else ()), ""
        user, cluster = getpass.getuser(), f"cluster={settings.get('ClusterName', '')}"
        found = _accounted(Association._fields, "user", user, "withassoc", cluster)
        mine = [Association(*row) for row in found if row[1]]  # without any, there is an empty row
        levels = {row[0]: Qos(*row) for row in _accounted(Qos._fields, "qos")}
        of_root = _accounted(("user", "defaultqos"), "association", "account=root", cluster)
        text = run(["scontrol", "--all", "--oneliner", "show", "partition"])
    except (CommandFailed, KeyError, OSError) as error:  # getuser() may know no user
        unchecked = f"platform: accounts, QOS and their limits are not checked: {error}"
        return Findings(notices=(unchecked,)), ""
    if not mine:
        return Findings(
            (
                f"platform.account: user {user!r} has no Slurm account on this cluster; ask your"
                " cluster admins",
            )
        ), ""
    account = (platform.account or mine[0].defaultaccount).lower()  # as Slurm compares them
    own = [each for each in mine if each.account == account]
    if not own:
        others = join_words(sorted({each.account for each in mine}))
        unknown = f"platform.account: {user} may not use {account!r}; use one of: {others}"
        return Findings((unknown,)), ""
    qos_of_partition = dict(_QOS.findall(text.lower()))
    problems, notices, flags = list[str](), list[str](), ""
    for name in partitions:
        # one of the partition alone has precedence
        here = max(
            (each for each in own if each.partition in ("", name)),
            key=lambda each: each.partition,
            default=None,
        )
        if here is None:
            others = join_words(sorted(each.partition for each in own))
            problems.append(
                f"platform.partition: {account} may not use {name}; use one of: {others}"
            )
            continue
        valid = here.qos.lower().split(",")
        # Slurm's order (assoc_mgr_get_default_qos_info)
        used = platform.qos or here.defaultqos or (here.qos if len(valid) == 1 else "")
        default_of_root = next((name for user, name in of_root if not user), None)
        is_assumed = not used and default_of_root is None  # a user may not see root's row
        qos = (used or default_of_root or "normal").lower().split(",")
        flags += "".join(levels[each].flags for each in qos if each in levels)
        if "qos" in enforced and platform.qos:
            wrong, others = [each for each in qos if each not in valid], join_words(sorted(valid))
            problems += [
                f"platform.qos: {account} may not use {each!r}; use one of: {others}"
                for each in wrong
            ]
        if "limits" in enforced and len(qos) < 2:  # of several, Slurm takes one that allows the job
            over = levels.get(qos_of_partition.get(name.lower(), ""))
            for field, text in _above_limits(facts, here, levels.get(qos[0], Qos("")), over):
                if field == "qos" and is_assumed:
                    notices.append(
                        f"{text} (assumed, since the cluster does not show its default QOS)"
                    )
                else:
                    problems.append(text)
    return Findings(tuple(problems), tuple(notices)), flags


def _accounted(fields: Sequence[str], *query: str) -> list[list[str]]:
    """Return the rows of `sacctmgr show` with these fields."""
    options = ["--noheader", "--parsable2", "--readonly", "show", *query]
    text = run(["sacctmgr", *options, f"format={','.join(fields)}"])
    rows = (line.split("|") for line in text.splitlines())
    return [row for row in rows if len(row) == len(fields)]


def _above_limits(
    facts: Facts, own: Association, qos: Qos, over: Qos | None
) -> Iterator[tuple[str, str]]:
    """Yield which limits of the QOS and the account the sweep exceeds, after the field to change.

    The partition's QOS, `over`, comes before the job's, unless that has the flag OverPartQOS, and
    both before the account (slurm.schedmd.com/resource_limits.html).
    """
    levels = [qos] if over is None else [over, qos]
    if "OverPartQOS" in qos.flags:
        levels.reverse()
    limits: list[tuple[Qos | Association, str, str]] = [
        (each, f"QOS {each.name}", "qos")
        if each is qos
        else (each, f"QOS {each.name} of the partition", "partition")
        for each in levels
    ]
    limits.append((own, f"account {own.account}", "account"))
    for column in ("maxtres", "grptres", "maxwall"):
        for each, of, field in limits:
            text = getattr(each, column)
            nodes, seconds = _NODES.search(text), _seconds(text)
            if nodes is not None or seconds is not None:
                above = _above(facts, nodes and int(nodes[1]), seconds, of, field)
                yield from ((field, each) for each in above)
                break


def _notices(facts: Facts, name: str, partition: Partition) -> Iterator[str]:
    if partition.usable < facts.max_nodes <= partition.nodes:
        yield (
            f"platform.partition: {name} has only {nodes_text(partition.usable)} up (neither down"
            f" nor drained), so jobs on {nodes_text(facts.max_nodes)} wait"
        )
    cores = facts.instance.vcpus
    if partition.cores is not None and cores is not None and cores > partition.cores:
        yield (
            f"platform.node.cores: got {cores:g}, but nodes of {name} have {partition.cores} CPUs"
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
