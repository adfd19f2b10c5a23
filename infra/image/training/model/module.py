"""The Lightning module: a classifier, its optimizer, and its metric over the validation set."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from training.arguments import TrainingArguments
from training.distributed.process_group import sum_over_ranks
from training.distributed.strategies import shard
from training.model.models import build_model
from training.torch_versions import FUSED_OPTIMIZERS, torch_has

FINAL_METRIC = "validation_accuracy"
FINAL_METRIC_GOAL = "maximize"


class Classifier(pl.LightningModule):
    """Cross-entropy training of any of the models."""

    model: nn.Module

    def __init__(self, arguments: TrainingArguments) -> None:
        super().__init__()
        self._arguments = arguments
        self.last_loss: Tensor | None = None
        self.validation_values: dict[str, float] = {}
        self._validation_sums = torch.zeros(3)

    def configure_model(self) -> None:
        """Build the model, whose size depends on the table that the data module has read."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        self.model = build_model(self._arguments, data.sample_shape, data.classes)
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh["data_parallel"])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        """Return the loss of one batch."""
        features, labels = batch
        loss = functional.cross_entropy(self.model(features), labels)
        # Read only when a progress line is due, because reading synchronizes the accelerator.
        self.last_loss = loss.detach()
        return loss

    def on_validation_epoch_start(self) -> None:
        """Reset the sums of loss, correct predictions, and rows."""
        self._validation_sums = torch.zeros(3, device=self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        """Add a batch's loss, correct predictions, and rows."""
        features, labels = batch
        scores = self.model(features).float()
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        right = (scores.argmax(dim=1) == labels).sum()
        self._validation_sums += torch.stack(
            (loss, right, torch.tensor(len(labels), device=self.device))
        )

    def on_validation_epoch_end(self) -> None:
        """Sum over all ranks, so that shards of unequal size are weighted by their rows."""
        loss, right, rows = sum_over_ranks(self._validation_sums.tolist())
        self.validation_values = {FINAL_METRIC: right / rows, "validation_loss": loss / rows}
        # ModelCheckpoint selects the best weights by this value.
        self.log(FINAL_METRIC, right / rows, logger=False)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and, if requested, its linear warm-up."""
        optimizer = build_optimizer(self._arguments, self.parameters())
        warmup = self._arguments.warmup_steps
        if warmup == 0:
            return optimizer
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def build_optimizer(arguments: TrainingArguments, parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer, fused into one kernel per step if this PyTorch supports it.

    More nodes don't speed up this part of a step.
    """
    options: dict[str, Any] = {
        "lr": arguments.learning_rate,
        "weight_decay": arguments.weight_decay,
    }
    if arguments.backend != "xla" and torch_has(FUSED_OPTIMIZERS):
        options["fused"] = True
    if arguments.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=arguments.momentum, **options)
    kind = torch.optim.Adam if arguments.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, **options)
