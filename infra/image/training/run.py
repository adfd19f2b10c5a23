"""One training run, from the environment to metrics.json."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.warnings import PossibleUserWarning
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import DDPStrategy

from training.arguments import TrainingArguments
from training.batching import BatchPlan, plan_batch
from training.boot_barrier import tell_end_of_measurement, wait_at_boot_barrier
from training.callback import Measurement
from training.cluster import Cluster, cluster_from_environment
from training.cpu_quota import cpu_quota_cores
from training.data import TableData
from training.errors import UserError
from training.files import write_text_atomically
from training.hardware import accelerator, choose_precision, set_thread_count
from training.metrics import key_value_line, summary_values
from training.module import FINAL_METRIC, Classifier
from training.process_group import SageMakerEnvironment, join_process_group, leave_process_group
from training.result import collect_metrics


def run(arguments: TrainingArguments) -> None:
    """Join the cluster, train, and leave metrics.json and the best checkpoint behind."""
    quiet_lightning()
    cluster = cluster_from_environment(os.environ)
    batch = plan_batch(
        cluster.world_size,
        arguments.per_replica_batch_size,
        arguments.accumulate_grad_batches,
        arguments.global_batch_size,
    )
    precision = choose_precision(arguments.precision)
    set_thread_count(cluster.processes_per_node)
    join_process_group(cluster, arguments.process_group_timeout_seconds)
    barrier_folder = os.environ.get("SM_BOOT_BARRIER_DIR") if cluster.local_rank == 0 else None
    if barrier_folder:
        wait_at_boot_barrier(Path(barrier_folder))
    measurement = Measurement(batch.accumulate_grad_batches, arguments.max_steps)
    trainer = build_trainer(arguments, cluster, batch, precision, measurement)
    measurement.start_run()
    quota = cpu_quota_cores()
    pl.seed_everything(arguments.seed, workers=True, verbose=False)
    data = TableData(arguments, cluster, batch, _prepared_folder(cluster))
    module = Classifier(arguments)
    trainer.fit(module, datamodule=data)
    metrics = collect_metrics(arguments, cluster, batch, data.epoch_plan, measurement, module, precision, quota)
    if cluster.rank == 0:
        publish(metrics, arguments.output_data_dir)
    if barrier_folder:
        tell_end_of_measurement(Path(barrier_folder))
    leave_process_group()


def publish(metrics: dict[str, Any], output_data_dir: Path) -> None:
    """Write metrics.json and print its facts."""
    write_text_atomically(output_data_dir / "metrics.json", json.dumps(metrics, indent=1, allow_nan=False) + "\n")
    print(key_value_line(summary_values(metrics)), flush=True)


def build_trainer(
    arguments: TrainingArguments, cluster: Cluster, batch: BatchPlan, precision: str, measurement: Measurement
) -> pl.Trainer:
    """The Trainer with everything switched off that is not asked for: it would be timed as if it were training."""
    every = arguments.evaluate_every_samples
    steps_between = max(1, round(every / batch.global_batch_size)) if every else None
    callbacks: list[pl.Callback] = [measurement]
    if arguments.checkpoint:
        callbacks.append(_best_checkpoint(arguments.model_dir))
    tensorboard = arguments.tensorboard
    trainer = pl.Trainer(
        accelerator=accelerator(),
        devices=cluster.processes_per_node if cluster.world_size > 1 else 1,
        num_nodes=cluster.nodes,
        strategy=_strategy(cluster),
        precision=precision,  # type: ignore[arg-type]
        max_epochs=arguments.epochs,
        max_steps=arguments.max_steps or -1,
        accumulate_grad_batches=batch.accumulate_grad_batches,
        val_check_interval=steps_between * batch.accumulate_grad_batches if steps_between else 1.0,
        check_val_every_n_epoch=None if steps_between else 1,
        callbacks=callbacks,
        logger=TensorBoardLogger(arguments.output_data_dir, "tensorboard", version="") if tensorboard else False,
        enable_checkpointing=arguments.checkpoint,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    # Lightning 2.6 broadcasts "was rank 0 told to stop?" before every batch and waits for the answer: a collective per
    # step and, on a GPU, a synchronisation. Our SIGTERM ends the process at once (training.callback), so it never is.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def quiet_lightning() -> None:
    """Its advice (worker counts, tips, devices found) is not this program's output."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=".*(exists and is not empty|LeafSpec)", module="pytorch_lightning")


def _strategy(cluster: Cluster) -> DDPStrategy | str:
    if cluster.world_size == 1:
        return "auto"  # one device needs no gradient exchange: an honest baseline
    return DDPStrategy(cluster_environment=SageMakerEnvironment(cluster), gradient_as_bucket_view=True)


def _best_checkpoint(model_dir: Path) -> ModelCheckpoint:
    return ModelCheckpoint(
        model_dir,
        filename="best",
        monitor=FINAL_METRIC,
        mode="max",
        save_weights_only=True,
        enable_version_counter=False,
    )


def _prepared_folder(cluster: Cluster) -> Path:
    """A folder of this node's own, the same for all its ranks: emulated nodes share the machine's temporary folder."""
    base = os.environ.get("SM_INPUT_DIR")
    if base is not None:
        return Path(base) / "prepared"
    if cluster.world_size == 1:
        return Path(tempfile.mkdtemp(prefix="training-"))
    # By hand: the launcher is the parent of every rank, so its process id is theirs in common.
    name = f"training-{os.getuid()}-{os.getppid()}-{cluster.current_host}-{cluster.master_port}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return folder
