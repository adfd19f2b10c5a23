"""One training run, from the environment to metrics.json."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.warnings import PossibleUserWarning
from nodesweep_clock import Amount, Probe
from nodesweep_network import network, time_all_reduces
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import Strategy

from training.arguments import TrainingArguments
from training.boot_barrier import report_end_of_measurement, wait_at_boot_barrier
from training.checkpoint import (
    BEST,
    LAST,
    ResumeCheckpoints,
    find_last_checkpoint,
    remove_checkpoints,
    restore_best,
)
from training.cluster import Cluster, cluster_from_environment
from training.cpu_quota import cpu_quota_cores
from training.data.batching import BatchPlan, plan_batch
from training.data.module import TableData
from training.distributed.backends import choose_backend
from training.distributed.process_group import (
    init_model_parallel,
    join_process_group,
    leave_process_group,
)
from training.distributed.strategies import build_strategy
from training.errors import UserError
from training.files import write_text_atomically
from training.hardware import choose_precision, set_thread_count
from training.measuring.callback import Measurement
from training.measuring.metrics import key_value_line, summary_values
from training.measuring.noise import GradientNoise
from training.measuring.parts import write_parts
from training.measuring.passes import (
    ASKED_BY,
    end_successfully_on_sigterm,
    sizes_to_time,
    time_passes,
)
from training.measuring.probing import steady_steps, steps_between_validations
from training.measuring.result import collect_metrics
from training.model.learning_rate import scaled_learning_rate
from training.model.module import FINAL_METRIC, Classifier

# A checkpoint and the run that resumes from it must agree on these: data order, model, optimizer.
FACTS = (
    "model",
    "hidden_size",
    "layers",
    "optimizer",
    "learning_rate",
    "warmup_steps",
    "momentum",
    "weight_decay",
    "seed",
    "passes_per_epoch",
    "incomplete_batch",
)


def run(arguments: TrainingArguments) -> None:
    """Join the cluster, train, and write metrics.json and the best checkpoint.

    Raises:
        UserError: The request does not fit the cluster, the hardware, or the data.
    """
    _quiet_lightning()
    cluster = cluster_from_environment(os.environ)
    batch = plan_batch(
        cluster.world_size,
        arguments.per_replica_batch_size,
        arguments.accumulate_grad_batches,
        arguments.global_batch_size,
    )
    precision = choose_precision(arguments.precision)
    backend = choose_backend(arguments.backend, has_cuda=torch.cuda.is_available())
    strategy = build_strategy(arguments.strategy, cluster, backend, arguments.compress)
    rate = scaled_learning_rate(
        arguments.learning_rate,
        arguments.learning_rate_rule,
        batch.global_batch_size,
        arguments.base_global_batch_size,
    )
    arguments = replace(arguments, learning_rate=rate)
    set_thread_count(cluster.processes_per_node)
    join_process_group(cluster, backend, arguments.process_group_timeout_seconds)
    if arguments.strategy == "smp" and cluster.world_size > 1:
        init_model_parallel()
    barrier_folder = os.environ.get("SM_BOOT_BARRIER_DIR") if cluster.local_rank == 0 else None
    if barrier_folder:
        wait_at_boot_barrier(Path(barrier_folder))
    sends_gradients = arguments.strategy == "ddp" and arguments.compress == "none"
    if cluster.world_size > 1 and backend == "gloo" and sends_gradients:
        network.timed = time_all_reduces(torch)
    prepared = _prepared_folder(cluster)
    keeps, resume_from = find_last_checkpoint(
        arguments.checkpoint_dir, cluster, prepared / "resume"
    )
    amount = Amount.from_environment()
    measurement = Measurement(
        batch,
        arguments.max_steps,
        Probe.from_environment(arguments.warmup_exclude_steps),
        lambda epoch_steps, taken: steady_steps(arguments, epoch_steps, taken).first_step,
        amount,
    )
    noise = GradientNoise.for_run(batch, cluster.world_size, arguments, backend, precision)
    callbacks: list[pl.Callback] = [measurement, *noise]
    if keeps:
        callbacks.append(_resume_checkpoints(arguments, batch, measurement, cluster, prepared))
    if amount is not None:  # the number of steps ends the run
        arguments = replace(arguments, epochs=-1, max_steps=None)
    trainer = _build_trainer(
        arguments, cluster, batch, precision, strategy, callbacks, resumes=resume_from is not None
    )
    measurement.start_run()
    quota = cpu_quota_cores()
    pl.seed_everything(arguments.seed, workers=True, verbose=False)
    data = TableData(arguments, cluster, batch, prepared)
    module = Classifier(arguments)
    # weights_only is explicit because PyTorch before 2.6 would unpickle any file found there.
    trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
    metrics = collect_metrics(
        arguments, cluster, batch, data, measurement, module, precision, quota, backend
    )
    # A resumed run has seen only the end of the training, where the noise is largest.
    gradient_noise = noise[0].facts() if noise and resume_from is None else {}
    parts = measurement.parts(cluster.world_size, cluster.rank)
    if cluster.rank == 0:
        results = {**metrics, **gradient_noise, **parts}
        publish(results, arguments.output_data_dir)
        if arguments.checkpoint_dir is not None:
            remove_checkpoints(arguments.checkpoint_dir)
        _add_passes(results, arguments.output_data_dir, module, data)
    else:
        write_parts(parts, arguments.output_data_dir)
    if barrier_folder:
        report_end_of_measurement(Path(barrier_folder))
    leave_process_group()


def publish(metrics: dict[str, Any], output_data_dir: Path) -> None:
    """Write metrics.json and print its summary."""
    _write_metrics(metrics, output_data_dir)
    print(key_value_line(summary_values(metrics)), flush=True)


def _write_metrics(metrics: dict[str, Any], output_data_dir: Path) -> None:
    write_text_atomically(
        output_data_dir / "metrics.json", json.dumps(metrics, indent=1, allow_nan=False) + "\n"
    )


def _add_passes(
    results: dict[str, Any], output_data_dir: Path, module: Classifier, data: TableData
) -> None:
    """Time passes at smaller batches if asked to, and add them to metrics.json.

    The results are complete without them, so the job succeeds even if this fails or is interrupted.
    """
    try:
        sizes = sizes_to_time(os.environ.get(ASKED_BY), results)
        if sizes:
            end_successfully_on_sigterm()
            if timed := time_passes(module, data, sizes, results):
                _write_metrics({**results, **timed}, output_data_dir)
    except Exception as error:
        print(f"passes at smaller batches were not timed: {error!r}", flush=True)


def _resume_checkpoints(
    arguments: TrainingArguments,
    batch: BatchPlan,
    measurement: Measurement,
    cluster: Cluster,
    prepared: Path,
) -> ResumeCheckpoints:
    folder = arguments.checkpoint_dir or prepared / "resume"  # only rank 0 writes to its folder
    if cluster.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LAST).exists():
            restore_best(folder, arguments.model_dir)
    asked = {name: getattr(arguments, name) for name in FACTS}
    facts = {**asked, "global_batch_size": batch.global_batch_size}
    best = arguments.model_dir / BEST
    return ResumeCheckpoints(folder, arguments.checkpoint_every_steps, best, measurement, facts)


def _prepared_folder(cluster: Cluster) -> Path:
    """Return a folder for this node, shared by all its ranks.

    Emulated nodes share the machine's temporary folder, so each node needs a different name.
    """
    base = os.environ.get("SM_INPUT_DIR")
    if base is not None:
        return Path(base) / "prepared"
    if cluster.world_size == 1:
        return Path(tempfile.mkdtemp(prefix="training-"))
    # Run by hand: all ranks share their parent, the launcher, so its PID identifies the run.
    name = f"training-{os.getuid()}-{os.getppid()}-{cluster.current_host}-{cluster.master_port}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to another user: set TMPDIR to a folder of your own")
    return folder


def _build_trainer(
    arguments: TrainingArguments,
    cluster: Cluster,
    batch: BatchPlan,
    precision: str,
    strategy: Strategy | str,
    callbacks: Sequence[pl.Callback],
    *,
    resumes: bool,
) -> pl.Trainer:
    """Return the Trainer without the default features that would be timed as training."""
    steps_between = steps_between_validations(arguments, batch.global_batch_size)
    callbacks = (
        [*callbacks, _best_checkpoint(arguments.model_dir)]
        if arguments.checkpoint
        else [*callbacks]
    )
    board = arguments.tensorboard_dir or arguments.output_data_dir / "tensorboard"
    trainer = pl.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
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
        logger=(
            TensorBoardLogger(board.parent, board.name, version="")
            if arguments.tensorboard
            else False
        ),
        enable_checkpointing=arguments.checkpoint,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        # A resumed run's first epoch is shorter, so the loader's length is read again after it.
        reload_dataloaders_every_n_epochs=1 if resumes else 0,
    )
    # Lightning 2.6 broadcasts rank 0's SIGTERM flag before every batch and waits for it: a
    # collective per step and, on a GPU, a synchronization. Here, SIGTERM ends the process
    # immediately (measuring/callback.py).
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def _quiet_lightning() -> None:
    """Silence Lightning's advice (worker counts, tips, devices found)."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings(
        "ignore", message=".*(exists and is not empty|LeafSpec)", module="pytorch_lightning"
    )


def _best_checkpoint(model_dir: Path) -> ModelCheckpoint:
    return ModelCheckpoint(
        model_dir,
        filename="best",
        monitor=FINAL_METRIC,
        mode="max",
        save_weights_only=True,
        enable_version_counter=False,
    )
