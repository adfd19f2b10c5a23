"""Hash a fixed amount of data, divided among any number of nodes, as a stand-in for a training.

    nodesweep run examples/slurm/slurm.yaml

Lines added for nodesweep: `from nodesweep_clock import clock`, `with clock():` around the work,
`clock.step()` after each step, and the line with world_size. The nodes need nothing but Python.
"""

import argparse
import hashlib
import json
import os

from nodesweep_clock import clock

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, help="blocks per node and step")
args = parser.parse_args()

nodes = len(json.loads(os.environ["SM_HOSTS"]))
block = bytes(1 << 18)
with clock():
    for _ in range(args.steps):
        for _ in range(args.batch_size):
            hashlib.sha256(block).digest()
        clock.step(args.batch_size)
print(f"world_size={nodes};", flush=True)
