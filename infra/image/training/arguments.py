"""The command line of the training program: SageMaker turns every hyperparameter into `--key value`.

python train.py --data DIR --model ranking_mlp --epochs 5
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from training.errors import UserError
from training.model.learning_rate import RULES

MODELS = ("ranking_mlp", "resnet18")
FORMATS = ("parquet", "csv")
OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("auto", "32", "bf16", "16")
INCOMPLETE_BATCH = ("drop", "pad")
BACKENDS = ("auto", "gloo", "nccl", "smddp", "xla")
STRATEGIES = ("ddp", "fsdp", "smp")
NO_FOLDER = "none"
SPLITTING_DEGREES = ("tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
"""Parameters of SageMaker's model parallelism 2.x under which ranks share layers, sequences or experts."""


@dataclass(frozen=True)
class TrainingArguments:
    """Every argument, parsed and checked on its own; `training.data.batching` checks what needs the world size."""

    model: str
    data: Path
    format: str
    label_column: str
    image_channels: int
    validation_fraction: float
    epochs: int
    passes_per_epoch: int
    max_steps: int | None
    per_replica_batch_size: int | None
    accumulate_grad_batches: int
    global_batch_size: int | None
    incomplete_batch: str
    evaluate_every_samples: int | None
    learning_rate: float
    learning_rate_rule: str
    base_global_batch_size: int | None
    warmup_steps: int
    optimizer: str
    momentum: float
    weight_decay: float
    seed: int
    hidden_size: int
    layers: int
    precision: str
    num_workers: int
    warmup_exclude_epochs: int
    warmup_exclude_steps: int
    warmup_exclude_seconds: float
    checkpoint: bool
    tensorboard: bool
    checkpoint_dir: Path | None
    checkpoint_every_steps: int | None
    backend: str
    strategy: str
    process_group_timeout_seconds: float
    model_dir: Path
    output_data_dir: Path
    tensorboard_dir: Path | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `python train.py --help` lists what is allowed")


def _whole(minimum: int) -> Any:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}, needs a whole number >= {minimum}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"got {value}, needs a whole number >= {minimum}")
        return value

    return parse


def _number(minimum: float, below: float = float("inf"), *, above_minimum: bool = False) -> Any:
    needs = f"a number {'>' if above_minimum else '>='} {minimum:g}" + (f" and < {below:g}" if below < 1e300 else "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}, needs {needs}") from None
        if not minimum <= value < below or (above_minimum and value == minimum):
            raise argparse.ArgumentTypeError(f"got {text}, needs {needs}")
        return value

    return parse


def _flag(text: str) -> bool:
    """The toolkit writes `--flag True`, the version 3 SDK's driver `--flag true`."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"got {text!r}, needs True or False")
    return text.lower() == "true"


def _folder_or_none(text: str) -> Path | None:
    return None if text == NO_FOLDER else Path(text)


def _model_parallel_parameters(text: str) -> dict[str, str]:
    """The toolkit writes the hyperparameter `mp_parameters`, an object, as `--mp_parameters name=value,…`."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if wrong := ["".join(pair) for pair in pairs if not (pair[0] and pair[2])]:
        raise argparse.ArgumentTypeError(f"got {wrong[0]!r}, needs name=value,… as SageMaker's toolkit writes it")
    return {name: value for name, _, value in pairs}


def _check_model_parallel(parameters: Mapping[str, str], strategy: str) -> None:
    """The parameters are the library's, which reads them by itself; refused is what this program can't do with them."""
    if "hybrid_shard_degree" not in parameters:
        raise UserError(
            "--mp_parameters: no hybrid_shard_degree among them, so they are not those of SageMaker's model "
            "parallelism 2.x, the only one this program has: use kind smp_v2, or bring a program for the other"
        )
    if strategy != "smp":
        raise UserError(
            f"--strategy {strategy} does not use SageMaker's model parallelism, which --mp_parameters asks for: use "
            "--strategy smp, or another kind than smp_v2"
        )
    for name in SPLITTING_DEGREES:
        if (value := parameters.get(name, "1")) != "1":
            raise UserError(
                f"--mp_parameters: {name}={value}, but this program shards states and splits nothing else: use 1, or "
                "bring a program that does"
            )


def default_checkpoint_dir(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where SageMaker keeps checkpoints over an interruption: as its configuration says, else where the folder is.

    A redirected /opt/ml (SAGEMAKER_BASE_DIR, on the local platform) has the folder always; the configuration counts.
    """
    base = Path(environment.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    try:
        config = json.loads((base / "input" / "config" / "checkpointconfig.json").read_text(encoding="utf-8"))
        return Path(config.get("LocalPath") or base / "checkpoints")
    except (OSError, ValueError, AttributeError):
        folder = base / "checkpoints"
        return folder if "SAGEMAKER_BASE_DIR" not in environment and folder.is_dir() else None


def build_parser(environment: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """The parser; defaults of the folders come from the SageMaker variables in `environment`."""
    parser = _Parser(prog="train.py", description="Distributed training, measured.", allow_abbrev=False)
    _add_data_arguments(parser.add_argument_group("data"), environment)
    _add_amount_arguments(parser.add_argument_group("how much"))
    _add_optimisation_arguments(parser.add_argument_group("model and optimiser"))
    _add_cluster_arguments(parser.add_argument_group("cluster and interruptions"), environment)
    _add_measurement_arguments(parser.add_argument_group("measurement and output"), environment)
    return parser


def _add_data_arguments(group: argparse._ArgumentGroup, environment: Mapping[str, str]) -> None:
    add = group.add_argument
    add("--data", type=Path, default=environment.get("SM_CHANNEL_TRAINING"), help="folder of tables")
    add("--format", choices=FORMATS, default="parquet", help="format of the tables")
    add("--label-column", default="label", help="class of a row; every other column is a feature")
    add("--image-channels", type=_whole(1), default=1, help="channels of pixel_* columns (order: channel, row, column)")
    add("--validation-fraction", type=_number(0, 1, above_minimum=True), default=0.2, help="rows held out")
    add("--num-workers", type=_whole(0), default=0, help="loader processes per rank; 0: in the rank itself")


def _add_amount_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--epochs", type=_whole(1), default=1)
    add("--passes-per-epoch", type=_whole(1), default=1, help="passes over the table in one epoch (small tables)")
    add("--max-steps", type=_whole(1), default=None, help="optimiser steps after which to stop")
    add("--per-replica-batch-size", type=_whole(1), default=None, help="b; from --global-batch-size where not given")
    add("--accumulate-grad-batches", type=_whole(1), default=1)
    add("--global-batch-size", type=_whole(1), default=None, help="B; must equal world size x b x accumulation")
    add("--incomplete-batch", choices=INCOMPLETE_BATCH, default="drop", help="an epoch's rest that fills no batch")
    add("--evaluate-every-samples", type=_whole(1), default=None, help="default: at the end of every epoch")


def _add_optimisation_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", choices=MODELS, default="ranking_mlp")
    add("--hidden-size", type=_whole(1), default=256, help="width of ranking_mlp")
    add("--layers", type=_whole(2), default=7, help="dense layers of ranking_mlp, the last one included")
    add("--optimizer", choices=OPTIMIZERS, default="adamw")
    add("--learning-rate", type=_number(0, above_minimum=True), default=1e-3)
    add("--learning-rate-rule", choices=RULES, default="none", help="scales it with the global batch")
    add("--base-global-batch-size", type=_whole(1), default=None, help="the batch that --learning-rate is meant for")
    add("--warmup-steps", type=_whole(0), default=0, help="steps over which the learning rate rises linearly")
    add("--momentum", type=_number(0, 1), default=0.9, help="sgd only")
    add("--weight-decay", type=_number(0), default=0.0)
    add("--seed", type=_whole(0), default=0)
    add("--precision", choices=PRECISIONS, default="auto", help="auto: bf16 or 16 mixed where the hardware has it")


def _add_cluster_arguments(group: argparse._ArgumentGroup, environment: Mapping[str, str]) -> None:
    add = group.add_argument
    add(
        "--backend", choices=BACKENDS, default="auto", help="auto: nccl with a GPU, gloo without; one process uses none"
    )
    add("--strategy", choices=STRATEGIES, default="ddp", help="fsdp: PyTorch's sharding; smp: SageMaker's, 2.x")
    add(
        "--mp_parameters",
        type=_model_parallel_parameters,
        default=None,
        help="what SageMaker's toolkit hands on under kind smp_v2; checked, and read by the library itself",
    )
    add("--process-group-timeout-seconds", type=_number(0, above_minimum=True), default=600.0)
    add(
        "--checkpoint-dir",
        type=_folder_or_none,
        default=default_checkpoint_dir(environment),
        help="last.ckpt is written there and resumed from; none: no such checkpoints (default: SageMaker's, if any)",
    )
    add("--checkpoint-every-steps", type=_whole(1), default=None, help="besides the end of every epoch")


def _add_measurement_arguments(group: argparse._ArgumentGroup, environment: Mapping[str, str]) -> None:
    add = group.add_argument
    add("--warmup-exclude-epochs", type=_whole(0), default=0, help="left out of the steady window; 1: the first epoch")
    add("--warmup-exclude-steps", type=_whole(0), default=10, help="left out of the steady window")
    add("--warmup-exclude-seconds", type=_number(0), default=30.0, help="left out of the steady window")
    add("--checkpoint", type=_flag, default=True, help="write the best checkpoint (True or False)")
    add("--tensorboard", type=_flag, default=True, help="write TensorBoard logs (True or False)")
    add("--model-dir", type=Path, default=environment.get("SM_MODEL_DIR", "output/model"))
    add("--output-data-dir", type=Path, default=environment.get("SM_OUTPUT_DATA_DIR", "output/data"))
    board = environment.get("TENSORBOARD_DIR")  # /opt/ml/output/tensorboard where SageMaker sends it to S3 meanwhile
    add("--tensorboard-dir", type=Path, default=board, help="default: tensorboard under --output-data-dir")


def parse_arguments(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> TrainingArguments:
    """Parse `argv`; raises UserError where argparse would print its usage and exit with 2."""
    values = vars(build_parser(environment).parse_args(argv))
    if values["data"] is None:
        raise UserError("--data is missing and SM_CHANNEL_TRAINING is not set: name the folder that holds the tables")
    if values["mp_parameters"] is not None:
        _check_model_parallel(values["mp_parameters"], values["strategy"])
    return TrainingArguments(**{field.name: values[field.name] for field in fields(TrainingArguments)})
