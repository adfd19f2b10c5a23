"""One training run, from the environment to metrics.json."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from training.arguments import TrainingArguments
from training.boot_barrier import tell_end_of_measurement, wait_at_boot_barrier
from training.checkpoint import BEST, LAST, ResumeCheckpoints, find_last_checkpoint, remove_checkpoints, restore_best
from training.cluster import Cluster, cluster_from_environment
from training.cpu_quota import cpu_quota_cores
from training.data.batching import BatchPlan, plan_batch
from training.data.module import TableData
from training.distributed.backends import choose_backend
from training.distributed.process_group import init_model_parallel, join_process_group, leave_process_group
from training.distributed.strategies import build_strategy
from training.errors import UserError
from training.files import write_text_atomically
from training.hardware import choose_precision, set_thread_count
from training.measuring.callback import Measurement
from training.measuring.metrics import key_value_line, summary_values
from training.measuring.result import collect_metrics
from training.model.learning_rate import scaled_learning_rate
from training.model.module import Classifier
from training.trainer import build_trainer, quiet_lightning

# What a checkpoint and the run that resumes from it must have in common: the data's order, the model, its optimiser.
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
    backend = choose_backend(arguments.backend, has_cuda=torch.cuda.is_available())
    strategy = build_strategy(arguments.strategy, cluster, backend)
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
    prepared = _prepared_folder(cluster)
    keeps, resume_from = find_last_checkpoint(arguments.checkpoint_dir, cluster, prepared / "resume")
    measurement = Measurement(batch, arguments.max_steps)
    callbacks: list[pl.Callback] = [measurement]
    if keeps:
        callbacks.append(_resume_checkpoints(arguments, batch, measurement, cluster, prepared))
    trainer = build_trainer(arguments, cluster, batch, precision, strategy, callbacks, resumes=resume_from is not None)
    measurement.start_run()
    quota = cpu_quota_cores()
    pl.seed_everything(arguments.seed, workers=True, verbose=False)
    data = TableData(arguments, cluster, batch, prepared)
    module = Classifier(arguments)
    trainer.fit(module, datamodule=data, ckpt_path=resume_from)
    metrics = collect_metrics(arguments, cluster, batch, data, measurement, module, precision, quota, backend)
    if cluster.rank == 0:
        publish(metrics, arguments.output_data_dir)
        if arguments.checkpoint_dir is not None:
            remove_checkpoints(arguments.checkpoint_dir)
    if barrier_folder:
        tell_end_of_measurement(Path(barrier_folder))
    leave_process_group()


def publish(metrics: dict[str, Any], output_data_dir: Path) -> None:
    """Write metrics.json and print its facts."""
    write_text_atomically(output_data_dir / "metrics.json", json.dumps(metrics, indent=1, allow_nan=False) + "\n")
    print(key_value_line(summary_values(metrics)), flush=True)


def _resume_checkpoints(
    arguments: TrainingArguments, batch: BatchPlan, measurement: Measurement, cluster: Cluster, prepared: Path
) -> ResumeCheckpoints:
    folder = arguments.checkpoint_dir or prepared / "resume"  # only rank 0's is written to
    if cluster.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LAST).exists():
            restore_best(folder, arguments.model_dir)
    asked = {name: getattr(arguments, name) for name in FACTS}
    facts = {**asked, "global_batch_size": batch.global_batch_size}
    best = arguments.model_dir / BEST
    return ResumeCheckpoints(folder, arguments.checkpoint_every_steps, best, measurement, facts)


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
