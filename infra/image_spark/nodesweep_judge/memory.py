"""Divides an executor's memory between Java and Python.

AWS's image gives Java ten times as much as everything else (`memoryOverhead`): 0.35 GB per core of
an ml.m5. nodesweep runs two Python workers per core, of 0.2 GB each before they read a file, and
YARN kills an executor that exceeds the sum.
"""

from __future__ import annotations

from collections.abc import Callable

HEAP, OVERHEAD = "spark.executor.memory", "spark.executor.memoryOverhead"
PYTHON_SHARE = 0.4


def shared_with_python(property_of: Callable[[str], str | None]) -> dict[str, str]:
    """Return properties that give Python its share of the same total.

    Return no properties if the sizes are unknown or Python already has its share.
    """
    sizes = [(property_of(name) or "").lower() for name in (HEAP, OVERHEAD)]
    if not all(size.endswith("m") and size[:-1].isdigit() for size in sizes):
        return {}
    heap, overhead = (int(size[:-1]) for size in sizes)
    wanted = int((heap + overhead) * PYTHON_SHARE)
    if overhead >= wanted:
        return {}
    return {HEAP: f"{heap + overhead - wanted}m", OVERHEAD: f"{wanted}m"}
