"""Time a Ray Train job on 1, 2, 4 and 8 nodes and write times.csv: python ray_train.py

Copy this file next to your my_training.py: build(config) in it prepares model and data, and
train(job) trains and returns the metric.
"""

import csv
import os
import tempfile
import time

import ray.train
import torch.distributed
from my_training import build, train
from ray.train.torch import TorchTrainer

GPUS_PER_NODE = int(os.environ.get("GPUS_PER_NODE", "8"))


def train_loop(config):
    job = build(config)
    torch.distributed.barrier()
    started = time.perf_counter()
    metric = train(job)
    torch.distributed.barrier()
    seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as empty:
        # Ray keeps rank 0's metrics only if they come with a checkpoint.
        ray.train.report(
            {"train_seconds": seconds, "final_metric": metric},
            checkpoint=ray.train.Checkpoint.from_directory(empty),
        )


with open("times.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["nodes", "repeat", "world_size", "train_seconds", "final_metric"])
    for repeat in (1, 2, 3):
        for nodes in (1, 2, 4, 8):
            workers = nodes * GPUS_PER_NODE
            scaling = ray.train.ScalingConfig(
                num_workers=workers, use_gpu=True, placement_strategy="PACK"
            )
            metrics = TorchTrainer(train_loop, scaling_config=scaling).fit().metrics
            table.writerow(
                [nodes, repeat, workers, metrics["train_seconds"], metrics["final_metric"]]
            )
