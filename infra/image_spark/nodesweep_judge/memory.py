"""How an executor's memory is shared by Java and Python.

AWS's image gives Java ten times what it leaves for all else, `memoryOverhead`: 0.35 GB for each
core of an ml.m5. The judge has two workers of Python for a core, of 0.2 GB each before they read a
file. YARN ends an executor that takes more than both together.
"""

from __future__ import annotations

from collections.abc import Callable

HEAP, OVERHEAD = "spark.executor.memory", "spark.executor.memoryOverhead"
PYTHON_SHARE = 0.4


def shared_with_python(property_of: Callable[[str], str | None]) -> dict[str, str]:
    """Properties by which Python gets its share of the same sum; none where that is not known, or
    it has as much already.
    """
    sizes = [(property_of(name) or "").lower() for name in (HEAP, OVERHEAD)]
    if not all(size.endswith("m") and size[:-1].isdigit() for size in sizes):
        return {}
    heap, overhead = (int(size[:-1]) for size in sizes)
    wanted = int((heap + overhead) * PYTHON_SHARE)
    if overhead >= wanted:
        return {}
    return {HEAP: f"{heap + overhead - wanted}m", OVERHEAD: f"{wanted}m"}
