"""Measures how much the gradients differ between ranks.

A report uses this to estimate the critical batch size. McCandlish et al. 2018 (arXiv 1812.06162),
appendix A.1: the squared norm of a gradient of B samples is on average |G|^2 + tr(S)/B. The ranks'
own gradients and the averaged gradient give this norm for two values of B.
"""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from training.arguments import TrainingArguments
from training.data.batching import BatchPlan
from training.distributed.process_group import gather_numbers

# A measured step takes 5 to 22% longer (ResNet18, perceptrons): at most 0.7% if it is one in 32.
EVERY_STEPS = 32
MOST_PAIRS, LEAST_WINDOWS, MOST_WINDOWS = 1024, 4, 16


class GradientNoise(pl.Callback):
    """In some of the steps, sums the squares of the gradients before and after the all-reduce.

    It changes no gradients and adds no collectives. The numbers stay on the accelerator until the
    end. It is not used with FSDP, where no process holds the full gradient, with XLA, which would
    recompile every measured step, or with 16-mixed, whose scale changes between steps.
    """

    def __init__(self, batch: BatchPlan) -> None:
        """Initialize without a measurement; `batch` holds the batch sizes behind both gradients."""
        self._batch = batch
        self._every = EVERY_STEPS
        self._steps = 0
        self._handles: list[Any] = []
        self._parts: list[Tensor] = []
        self._pairs: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def for_run(
        cls,
        batch: BatchPlan,
        world_size: int,
        arguments: TrainingArguments,
        backend: str,
        precision: str,
    ) -> list[GradientNoise]:
        """Return a list with the callback; empty if the run has no gradients to compare."""
        is_whole = arguments.strategy == "ddp" and backend != "xla" and precision != "16-mixed"
        return [cls(batch)] if world_size > 1 and is_whole else []

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Watch the gradients of the batch whose backward pass ends with the all-reduce."""
        if (batch_idx + 1) % self._batch.accumulate_grad_batches:
            return
        self._steps += 1
        if self._steps % self._every == 0:
            self._parts = []
            # A hook of a parameter sees this rank's gradient, before DDP copies it to a bucket.
            self._handles = [
                parameter.register_hook(lambda gradient: self._parts.append(_square(gradient)))
                for parameter in module.parameters()
                if parameter.requires_grad
            ]

    def on_after_backward(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Record the squared norms of this rank's gradient and of the averaged gradient."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        if self._parts and gradients:
            own = torch.stack(self._parts).sum() * self._batch.accumulate_grad_batches**2
            self._pairs.append((own, torch.stack([_square(each) for each in gradients]).sum()))
        if len(self._pairs) == MOST_PAIRS:
            self._pairs, self._every = self._pairs[1::2], 2 * self._every

    def facts(self) -> dict[str, Any]:
        """Return `gradient_noise` of metrics.json; every rank must call this collective.

        The result is empty if a gradient was not finite or too few steps were measured.
        """
        pairs = [(float(own), float(averaged)) for own, averaged in self._pairs]
        if len(pairs) < LEAST_WINDOWS:
            return {}
        size = math.ceil(len(pairs) / MOST_WINDOWS)
        pairs = pairs[len(pairs) % size :]
        owns = gather_numbers([own for own, _ in pairs])
        own = [math.fsum(each) / len(owns) for each in zip(*owns, strict=True)]
        averaged = [square for _, square in pairs]
        if not all(map(math.isfinite, [*own, *averaged])):
            return {}
        return {
            "gradient_noise": {
                "every_steps": self._every,
                "small_batch_size": self._batch.per_replica_batch_size,
                "small_squares": _means(own, size),
                "large_batch_size": self._batch.global_batch_size,
                "large_squares": _means(averaged, size),
            }
        }


def _square(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).square()


def _means(values: list[float], size: int) -> list[float]:
    """Return the mean of each window of `size` values."""
    return [math.fsum(values[start : start + size]) / size for start in range(0, len(values), size)]
