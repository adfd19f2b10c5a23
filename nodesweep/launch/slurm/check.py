"""Check the cluster before a run: the shared folder, the partitions, the account and the QOS.

The checks use sinfo, scontrol and sacctmgr.
"""

from __future__ import annotations

import getpass
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nodesweep.configs.atomic import folder_problem
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.launch.slurm.commands import CommandFailed, run
from nodesweep.launch.slurm.partitions import SINFO, Partition, read_partitions
from nodesweep.launch.slurm.queue import seconds_of
from nodesweep.scaling.formats import join_words, nodes_text
from nodesweep.scaling.rules.rule import Facts, Findings, combine, merge_arms

_Row = Mapping[str, str]
_SETTING = re.compile(r"^(\w+) *= (.*?) *$", re.MULTILINE)
"""A line of `scontrol show config`."""
_QOS = re.compile(r"^partitionname=(\S+).*? qos=(\S+)", re.MULTILINE)
"""A partition and its QOS, in a line of `scontrol show partition` in lower case."""
_NODES = re.compile(r"\bnode=(\d+)")
_LIMITS = ("maxtres", "grptres", "maxwall")
_OF_ACCOUNT = ("defaultaccount", "account", "partition", "qos", "defaultqos", *_LIMITS)
_OF_QOS = ("name", "flags", *_LIMITS)
"""Fields of sacctmgr for the user's accounts (with an empty partition for all), and for QOS."""


def check_cluster(facts: Facts) -> Findings:
    """Return findings that prevent the sweep from running in its folder and partition."""
    platform = _section(facts)
    if len({each.config.platform for each in facts.each}) > 1:
        found = merge_arms({name: _check_partitions(own) for name, own in facts.arms.items()})
    else:
        found = _check_partitions(facts)
    root = Path(platform.folder)
    folder = folder_problem(root) or folder_problem(root / platform.prefix)
    problems = [] if folder is None else [f"platform.folder: {folder}"]
    return replace(found, problems=(*problems, *found.problems))


def _section(facts: Facts) -> SlurmPlatform:
    platform = facts.config.platform
    assert isinstance(platform, SlurmPlatform)
    return platform


def _check_partitions(facts: Facts) -> Findings:
    try:
        partitions, default = read_partitions(run([*SINFO, "--all"]))
    except CommandFailed as error:
        return Findings((f"platform: the cluster can't be queried: {error}",))
    names = (_section(facts).partition or default or "").split(",")
    accounts, flags = _check_accounting(facts, names) if names != [""] else (Findings(), "")
    found = []
    for name in names:
        if name in partitions:
            found.append(_judge(facts, name, partitions[name], flags))
            continue
        lacks = f"the cluster has no partition {name!r}"
        if names == [""]:
            lacks = "not set, and the cluster has no default"
        found.append(Findings((f"platform.partition: {lacks}; {_one_of(partitions)}",)))
    return combine([*found, accounts])


def _judge(facts: Facts, name: str, partition: Partition, flags: str) -> Findings:
    """Check the sweep against the partition's limits, which the flags of a QOS can lift."""
    most, cores = facts.max_nodes, facts.instance.vcpus or 0
    job_nodes = math.inf if "PartitionMaxNodes" in flags else partition.job_nodes
    seconds = math.inf if "PartitionTimeLimit" in flags else partition.time_seconds
    is_down = (
        not partition.is_up, f"platform.partition: {name} is not up; use another one, or wait"
    )  # fmt: skip
    return Findings(
        (
            *_broken(is_down),
            *_above(facts, name, "partition", min(partition.nodes, job_nodes), seconds),
        ),
        _broken(
            (
                partition.usable < most <= partition.nodes,
                f"platform.partition: {name} has only {nodes_text(partition.usable)} up (neither"
                f" down nor drained), so jobs on {nodes_text(most)} wait",
            ),
            (
                cores > partition.cores,
                f"platform.node.cores: got {cores:g}, but nodes of {name} have {partition.cores}"
                " CPUs",
            ),
        ),
    )


def _broken(*rules: tuple[bool, str]) -> tuple[str, ...]:
    """Return the messages of the broken rules."""
    return tuple(sentence for is_broken, sentence in rules if is_broken)


def _above(
    facts: Facts, of: str, field: str, nodes: float = math.inf, seconds: float = math.inf
) -> tuple[str, ...]:
    """Return a problem for each limit that the sweep exceeds, naming the field to change."""
    most, asked = facts.max_nodes, facts.training.max_runtime_seconds
    return _broken(
        (
            most > nodes,
            f"sweep.node_counts: the largest job needs {nodes_text(most)}, but {of} allows"
            f" {nodes}; remove the larger counts, or use another platform.{field}",
        ),
        (
            asked > seconds,
            f"training.max_runtime_seconds: got {asked}, but the limit of {of} is"
            f" {seconds:.0f} s; lower it, or use another platform.{field}",
        ),
    )


def _one_of(allowed: Iterable[str]) -> str:
    return f"use one of: {join_words(sorted(allowed)) or 'none'}"


def _check_accounting(facts: Facts, partitions: Sequence[str]) -> tuple[Findings, str]:
    """Return findings about accounts, QOS and their limits, and the flags of the job's QOS.

    Settings such as a partition's AllowAccounts are not checked here. They do not depend on a job's
    size, so sbatch refuses the first job.
    """
    platform = _section(facts)
    try:
        settings = dict(_SETTING.findall(run(["scontrol", "show", "config"])))
        enforced = settings.get("AccountingStorageEnforce", "none").split(",")
        if "associations" not in enforced:
            asked = [f"platform.{name}" for name in ("account", "qos") if getattr(platform, name)]
            why = "not checked, since the cluster enforces no accounts (AccountingStorageEnforce)"
            return Findings(notices=(f"{join_words(asked)}: {why}",) if asked else ()), ""
        user, cluster = getpass.getuser(), f"cluster={settings.get('ClusterName', '')}"
        found = _accounted(_OF_ACCOUNT, "user", user, "withassoc", cluster)
        mine = [row for row in found if row["account"]]  # without any, there is an empty row
        levels = {row["name"]: row for row in _accounted(_OF_QOS, "qos")}
        of_root = _accounted(("user", "defaultqos"), "association", "account=root", cluster)
        text = run(["scontrol", "--all", "--oneliner", "show", "partition"])
    except (CommandFailed, KeyError, OSError) as error:  # getuser() can fail too
        unchecked = f"platform: accounts, QOS and their limits are not checked: {error}"
        return Findings(notices=(unchecked,)), ""
    account = (
        platform.account or mine[0]["defaultaccount"] if mine else ""
    ).lower()  # as Slurm does
    own = [each for each in mine if each["account"] == account]
    if not own:
        lacks = "has no Slurm account on this cluster; ask your cluster admins"
        if mine:
            lacks = f"may not use {account!r}; {_one_of({each['account'] for each in mine})}"
        return Findings((f"platform.account: user {user!r} {lacks}",)), ""
    qos_of_partition = dict(_QOS.findall(text.lower()))
    problems, notices, flags = list[str](), list[str](), ""
    for name in partitions:
        # an account of this partition only has precedence
        fitting = [each for each in own if each["partition"] in ("", name)]
        if not fitting:
            others = _one_of(each["partition"] for each in own)
            problems.append(f"platform.partition: {account} may not use {name!r}; {others}")
            continue
        here = max(fitting, key=lambda each: each["partition"])
        valid = here["qos"].lower().split(",")
        # Slurm's order (assoc_mgr_get_default_qos_info)
        used = platform.qos or here["defaultqos"] or (here["qos"] if len(valid) == 1 else "")
        default_of_root = next((row["defaultqos"] for row in of_root if not row["user"]), None)
        is_assumed = not used and default_of_root is None  # not every user can see root's row
        qos = (used or default_of_root or "normal").lower().split(",")
        flags += "".join(levels[each]["flags"] for each in qos if each in levels)
        if "qos" in enforced and platform.qos:
            wrong = (each for each in qos if each not in valid)
            problems += [
                f"platform.qos: {account} may not use {each!r}; {_one_of(valid)}" for each in wrong
            ]
        if "limits" in enforced and len(qos) < 2:  # of several, Slurm uses one that allows the job
            over = levels.get(qos_of_partition.get(name.lower(), ""))
            for field, text in _limits_above(facts, here, levels.get(qos[0], {}), over):
                if field == "qos" and is_assumed:
                    why = "assumed, since the cluster does not show its default QOS"
                    notices.append(f"{text} ({why})")
                else:
                    problems.append(text)
    return Findings(tuple(problems), tuple(notices)), flags


def _accounted(fields: Sequence[str], *query: str) -> list[dict[str, str]]:
    """Return the rows of `sacctmgr show` with these fields."""
    options = ["--noheader", "--parsable2", "--readonly", "show", *query]
    text = run(["sacctmgr", *options, f"format={','.join(fields)}"])
    rows = (line.split("|") for line in text.splitlines())
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _limits_above(
    facts: Facts, own: _Row, qos: _Row, over: _Row | None
) -> Iterator[tuple[str, str]]:
    """Yield each limit of QOS and account that the sweep exceeds, and the field to change.

    The partition's QOS, `over`, has precedence over the job's QOS unless the latter has the flag
    OverPartQOS. Both have precedence over the account (slurm.schedmd.com/resource_limits.html).
    """
    levels = [
        (qos, f"QOS {qos.get('name')}", "qos"),
        (own, f"account {own['account']}", "account"),
    ]
    if over is not None:
        of = f"QOS {over['name']} of the partition"
        levels.insert("OverPartQOS" in qos.get("flags", ""), (over, of, "partition"))
    for column in _LIMITS:
        for level, of, field in levels:
            text = level.get(column, "")
            nodes, seconds = _NODES.search(text), seconds_of(text)
            if nodes or seconds is not None:
                limits = {"nodes": int(nodes[1])} if nodes else {"seconds": seconds or 0.0}
                yield from ((field, each) for each in _above(facts, of, field, **limits))
                break
