"""Logistic regression by gradient descent in NumPy; mpi4py sums the gradients. No PyTorch.

    nodesweep run examples/mpi4py/nodesweep.yaml        # 1 and 2 nodes; see its first lines
    mpirun -np 2 python -m mpi4py train.py --steps 100  # by hand, next to nodesweep_clock.py

Lines added for nodesweep: `from nodesweep_clock import clock`, a barrier and `with clock():` around
the training, `clock.step()` after each step and `clock.metric()` for the result. The clock gets
rank and size from mpi4py. Omit the stopwatch, which is only there to check T.
"""

import argparse
import time

import numpy as np
from mpi4py import MPI
from nodesweep_clock import clock

FEATURES = 256


def make_rows(rows, seed):
    """Points on either side of a plane through zero."""
    plane = np.random.default_rng(0).standard_normal(FEATURES)
    points = np.random.default_rng(seed).standard_normal((rows, FEATURES))
    return points, (points @ plane > 0).astype(float)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--batch-size", type=int, default=8192, help="per process")
args = parser.parse_args()

comm = MPI.COMM_WORLD
points, labels = make_rows(args.batch_size, seed=1 + comm.rank)
weights = np.zeros(FEATURES)

comm.Barrier()  # so that all ranks enter the clock simultaneously
stopwatch_started = time.perf_counter()
with clock():
    for _ in range(args.steps):
        predicted = 1 / (1 + np.exp(-points @ weights))
        gradient = points.T @ (predicted - labels) / len(labels)
        total = np.empty_like(gradient)
        comm.Allreduce(gradient, total)
        weights -= total / comm.size
        clock.step(len(labels))
    held_out_points, held_out_labels = make_rows(4096, seed=0)
    right = (held_out_points @ weights > 0) == (held_out_labels > 0)
    clock.metric("accuracy", right.mean(), goal="maximize")
if comm.rank == 0:
    print(f"stopwatch: {time.perf_counter() - stopwatch_started:.4f} s", flush=True)
