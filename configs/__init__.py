"""The typed config of a benchmark, and the shipped benchmarks.

This file imports nothing, to keep `--help` fast.
"""

INIT_CONFIG = "nodesweep.yaml"
"""The config file that `nodesweep init` writes by default, possibly next to the script."""
