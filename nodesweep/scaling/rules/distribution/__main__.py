"""Print docs/distribution.md: python -m nodesweep.scaling.rules.distribution."""

from __future__ import annotations

from nodesweep.scaling.rules.distribution.table import distribution_document

if __name__ == "__main__":
    print(distribution_document(), end="")
