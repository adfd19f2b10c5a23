"""The typed config of a benchmark, and the benchmarks that are shipped.
This file imports nothing, for `--help`.
"""

INIT_CONFIG = "nodesweep.yaml"
"""The config that `nodesweep init` writes by default, perhaps beside the script."""
