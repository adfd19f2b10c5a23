"""Lightning's Trainer for a run, with everything switched off that is not asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
from lightning_fabric.utilities.warnings import PossibleUserWarning
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import Strategy

from training.arguments import TrainingArguments
from training.cluster import Cluster
from training.data.batching import BatchPlan
from training.hardware import accelerator
from training.model.module import FINAL_METRIC


def build_trainer(
    arguments: TrainingArguments,
    cluster: Cluster,
    batch: BatchPlan,
    precision: str,
    strategy: Strategy | str,
    callbacks: Sequence[pl.Callback],
    *,
    resumes: bool,
) -> pl.Trainer:
    """The Trainer; whatever it did unasked would be timed as if it were training."""
    every = arguments.evaluate_every_samples
    steps_between = max(1, round(every / batch.global_batch_size)) if every else None
    callbacks = [*callbacks, _best_checkpoint(arguments.model_dir)] if arguments.checkpoint else [*callbacks]
    board = arguments.tensorboard_dir or arguments.output_data_dir / "tensorboard"
    trainer = pl.Trainer(
        accelerator=accelerator(),
        devices=cluster.processes_per_node if cluster.world_size > 1 else 1,
        num_nodes=cluster.nodes,
        strategy=strategy,
        precision=precision,  # type: ignore[arg-type]
        max_epochs=arguments.epochs,
        max_steps=arguments.max_steps or -1,
        accumulate_grad_batches=batch.accumulate_grad_batches,
        val_check_interval=steps_between * batch.accumulate_grad_batches if steps_between else 1.0,
        check_val_every_n_epoch=None if steps_between else 1,
        callbacks=callbacks,
        logger=TensorBoardLogger(board.parent, board.name, version="") if arguments.tensorboard else False,
        enable_checkpointing=arguments.checkpoint,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        # A resumed run's first epoch is a shorter one: the loader's length is asked for again at the next.
        reload_dataloaders_every_n_epochs=1 if resumes else 0,
    )
    # Lightning 2.6 broadcasts "was rank 0 told to stop?" before every batch and waits for the answer: a collective per
    # step and, on a GPU, a synchronisation. SIGTERM ends the process at once (measuring/callback.py): never.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def quiet_lightning() -> None:
    """Its advice (worker counts, tips, devices found) is not this program's output."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*(exists and is not empty|LeafSpec)", module="pytorch_lightning")


def _best_checkpoint(model_dir: Path) -> ModelCheckpoint:
    return ModelCheckpoint(
        model_dir,
        filename="best",
        monitor=FINAL_METRIC,
        mode="max",
        save_weights_only=True,
        enable_version_counter=False,
    )
