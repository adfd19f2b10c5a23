"""Caveat about the CPU use of the nodes, often the first clue to why a job does not scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from nodesweep.configs.catalogue import InstanceType, UnknownInstanceType, load_catalogue
from nodesweep.scaling.formats import format_percent, join_words, nodes_text
from nodesweep.scaling.outcome.cpu_speed import ALLOCATED_USED, QUOTA_USED
from nodesweep.scaling.report.model import Point

LOW_USE = 0.5
"""CPU use below which a node waited longer than it worked."""
_CPU = "cpu_percent"


def find_low_use(used: Sequence[Point]) -> Iterator[str]:
    """Yield a caveat with the CPU use at each node count if it is low at one of them.

    Node counts are left out if their CPU use is unknown or if accelerators do the work.
    """
    shares: dict[int, list[float]] = {}
    for point in used:
        if (share := _share(point)) is not None:
            shares.setdefault(point.nodes, []).append(share)
    at = {nodes: median(values) for nodes, values in sorted(shares.items())}
    is_measured = all(
        QUOTA_USED in point.utilisation for point in used if _share(point) is not None
    )
    if any(share < LOW_USE for share in at.values()):
        listed = join_words(f"{format_percent(at[nodes])} at {nodes_text(nodes)}" for nodes in at)
        # CloudWatch's means cover the whole job
        when = "during the measurement" if is_measured else "while their jobs ran"
        start = "" if is_measured else ", or the job was starting up"
        yield (
            f"The nodes used only part of their CPU {when}: {listed}. The rest of the time they "
            f"waited for data, for each other or for a lock, or slept{start}. Look there first for "
            "the bottleneck; if the share is low, more or faster processors would change little."
        )


def _share(point: Point) -> float | None:
    """Return the used share of the CPU, quota or allocation of a node; None if unknown."""
    for used in (QUOTA_USED, ALLOCATED_USED):
        if (percent := point.utilisation.get(used)) is not None:
            return percent / 100
    cpu, instance = point.utilisation.get(_CPU), _instance(point.instance_type)
    if cpu is None or instance is None or instance.accelerators:
        return None
    if instance.emulated:  # in percent of the node, whereas AWS reports 100 per core
        return cpu / 100
    return None if instance.vcpus is None else cpu / (100 * instance.vcpus)


def _instance(name: str | None) -> InstanceType | None:
    try:
        return None if name is None else load_catalogue().get(name)
    except UnknownInstanceType:
        return None
