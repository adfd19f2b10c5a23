"""Read the cluster's partitions from sinfo."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nodesweep.launch.slurm.queue import seconds_of

SINFO = ("sinfo", "--noheader", "--format=%P|%a|%l|%s|%F|%c|%m|%G")
_ROW = re.compile(
    r"(?P<name>[^|*]+)(?P<is_default>\*?)\|(?P<state>\w+)\|(?P<time>[^|]+)\|(?:\d+-)?(?P<most>[^|]+)"
    r"\|(?P<busy>\d+)/(?P<idle>\d+)/\d+/(?P<nodes>\d+)\|(?P<cores>[^|]*)\|(?P<mib>[^|]*)\|(?P<gres>.*)"
)
"""A line of sinfo: a kind of node in a partition."""


@dataclass(frozen=True)
class Partition:
    """A partition as sinfo describes it; limits are infinite if there are none.

    Attributes:
        is_up: True if the partition starts jobs.
        time_seconds: maximum time limit of a job.
        job_nodes: maximum number of nodes of a job.
        nodes: number of nodes.
        usable: number of nodes that are neither down nor drained.
        cores: smallest number of CPUs of a node; infinite if unknown.
        memory_mib: smallest memory of a node; infinite if unknown.
        gres: generic resources of each kind of node.
    """

    is_up: bool = True
    time_seconds: float = math.inf
    job_nodes: float = math.inf
    nodes: int = 0
    usable: int = 0
    cores: float = math.inf
    memory_mib: float = math.inf
    gres: tuple[str, ...] = ()


def read_partitions(text: str) -> tuple[Mapping[str, Partition], str | None]:
    """Read sinfo's lines, one for each kind of node in a partition; other lines are ignored.

    Returns:
        The partitions by name, and the name of the default one.
    """
    found: dict[str, Partition] = {}
    default = None
    for row in filter(None, map(_ROW.fullmatch, map(str.strip, text.splitlines()))):
        name, others = row["name"], found.get(row["name"], Partition())
        default = name if row["is_default"] else default
        found[name] = Partition(
            row["state"] == "up",
            math.inf if (seconds := seconds_of(row["time"])) is None else seconds,
            _number(row["most"]),
            others.nodes + int(row["nodes"]),
            others.usable + int(row["busy"]) + int(row["idle"]),
            min(others.cores, _number(row["cores"])),
            min(others.memory_mib, _number(row["mib"])),
            (*others.gres, row["gres"]),
        )
    return found, default


def _number(cell: str) -> float:
    """Convert a number from sinfo; infinite if there is no limit or it is abbreviated (1.50K).

    32+ means nodes with 32 or more.
    """
    digits = cell.rstrip("+")
    return int(digits) if digits.isdecimal() else math.inf
