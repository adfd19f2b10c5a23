"""A rank under DDP that compares GradientNoise's squares with gradients computed without DDP."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "infra" / "image"))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training.data.batching import BatchPlan
from training.measuring import noise

ACCUMULATE, BATCH, RANKS, STEPS = 2, 4, 2, 34


def gradient(model: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient of the mean loss over the rows."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    alone(rows).square().mean().backward()
    return [parameter.grad for parameter in alone.parameters() if parameter.grad is not None]


def square(gradients: list[torch.Tensor]) -> float:
    """Return the sum of all squares."""
    return float(sum((each.double() ** 2).sum() for each in gradients))


def main() -> None:
    """Train a few steps; exit with an error if the squares differ."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise.EVERY_STEPS, nothing = 1, Any
    watch = noise.GradientNoise(BatchPlan(RANKS * BATCH * ACCUMULATE, BATCH, ACCUMULATE))
    rows = torch.randn(STEPS, ACCUMULATE, RANKS, BATCH, 6)
    own, averaged = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        own.append(
            sum(square(gradient(model, rows[step, -1, each])) for each in range(RANKS)) / RANKS
        )
        averaged.append(square(gradient(model, rows[step].reshape(-1, 6))))
        for part in range(ACCUMULATE):
            watch.on_train_batch_start(nothing, model, None, ACCUMULATE * step + part)
            ddp.require_backward_grad_sync = part == ACCUMULATE - 1
            (ddp(rows[step, part, rank]).square().mean() / ACCUMULATE).backward()
            watch.on_after_backward(nothing, model)
        optimizer.step()
    found = watch.facts()["gradient_noise"]
    assert (found["small_batch_size"], found["large_batch_size"]) == (BATCH, 16)
    for name, values in (("small_squares", own), ("large_squares", averaged)):
        triples = torch.tensor(values[STEPS % 3 :]).reshape(-1, 3)
        expected = triples.mean(dim=1)
        torch.testing.assert_close(torch.tensor(found[name]), expected, rtol=1e-4, atol=0.0)
    dist.destroy_process_group()


main()
