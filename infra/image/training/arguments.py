"""Command line of the training program; SageMaker passes hyperparameters as `--key value`.

python train.py --data DIR --model ranking_mlp --epochs 5
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
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
COMPRESSIONS = ("none", "fp16", "bf16")
NO_FOLDER = "none"
SPLITTING_DEGREES = ("tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
"""Parameters of SageMaker model parallelism 2.x that split layers, sequences, or experts."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `python train.py --help` lists the options")


def _whole(minimum: int) -> Any:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"got {text!r}, expected a whole number >= {minimum}"
            ) from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"got {value}, expected a whole number >= {minimum}")
        return value

    return parse


def _number(minimum: float, below: float = float("inf"), *, above_minimum: bool = False) -> Any:
    expected = f"a number {'>' if above_minimum else '>='} {minimum:g}" + (
        f" and < {below:g}" if below < 1e300 else ""
    )

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}") from None
        if not minimum <= value < below or (above_minimum and value == minimum):
            raise argparse.ArgumentTypeError(f"got {text}, expected {expected}")
        return value

    return parse


def _flag(text: str) -> bool:
    """Parse a flag's value: `True` (from the toolkit) or `true` (from SDK v3's driver)."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected True or False")
    return text.lower() == "true"


def _folder_or_none(text: str) -> Path | None:
    return None if text == NO_FOLDER else Path(text)


def _model_parallel_parameters(text: str) -> dict[str, str]:
    """Parse `--mp_parameters name=value,…`, as the toolkit passes the hyperparameter."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if wrong := ["".join(pair) for pair in pairs if not (pair[0] and pair[2])]:
        raise argparse.ArgumentTypeError(
            f"got {wrong[0]!r}, expected name=value,… as written by SageMaker's toolkit"
        )
    return {name: value for name, _, value in pairs}


def _check_model_parallel(parameters: Mapping[str, str], strategy: str) -> None:
    """Reject values of `--mp_parameters` that this program doesn't support.

    The library itself reads them from the environment.
    """
    if "hybrid_shard_degree" not in parameters:
        raise UserError(
            "--mp_parameters: hybrid_shard_degree is missing, so these are not parameters of"
            " SageMaker's model parallelism 2.x, the only version that this program supports: use"
            " kind smp_v2, or bring a program for version 1"
        )
    if strategy != "smp":
        raise UserError(
            f"--strategy {strategy} does not use SageMaker's model parallelism, which"
            " --mp_parameters requires: use --strategy smp, or a kind other than smp_v2"
        )
    for name in SPLITTING_DEGREES:
        if (value := parameters.get(name, "1")) != "1":
            raise UserError(
                f"--mp_parameters: {name}={value}, but this program only shards parameters and"
                " optimizer states: use 1, or bring a program that supports more"
            )


def default_checkpoint_dir(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder in which SageMaker keeps checkpoints across interruptions, or None.

    checkpointconfig.json names the folder. Without that file, it is /opt/ml/checkpoints if that
    folder exists. The local platform redirects /opt/ml (SAGEMAKER_BASE_DIR) to a folder that always
    has checkpoints/, so there the result is None without the file.
    """
    base = Path(environment.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    try:
        config = json.loads(
            (base / "input" / "config" / "checkpointconfig.json").read_text(encoding="utf-8")
        )
        return Path(config.get("LocalPath") or base / "checkpoints")
    except (OSError, ValueError, AttributeError):
        folder = base / "checkpoints"
        return folder if "SAGEMAKER_BASE_DIR" not in environment and folder.is_dir() else None


def _option(group: str, default: Any = None, **options: Any) -> dict[str, Any]:
    """Return metadata that makes a field a command-line option.

    `group` is the option's heading in `--help`. A callable `default` receives the environment.
    `options` are passed to argparse.
    """
    return {"group": group, "default": default, **options}


_DATA = "data"
_AMOUNT = "amount of training"
_OPTIMISATION = "model and optimizer"
_CLUSTER = "cluster and interruptions"
_MEASUREMENT = "measurement and output"


@dataclass(frozen=True)
class TrainingArguments:
    """All arguments, checked except for the batch sizes, which `training.data.batching` checks.

    Each field is the option of the same name (`max_steps`: --max-steps), in the order of `--help`.
    """

    data: Path = field(
        metadata=_option(
            _DATA,
            lambda environment: environment.get("SM_CHANNEL_TRAINING"),
            type=Path,
            help="folder with the tables",
        )
    )
    format: str = field(
        metadata=_option(_DATA, "parquet", choices=FORMATS, help="format of the tables")
    )
    label_column: str = field(
        metadata=_option(
            _DATA, "label", help="column with the class of a row; all other columns are features"
        )
    )
    image_channels: int = field(
        metadata=_option(
            _DATA,
            1,
            type=_whole(1),
            help="channels of pixel_* columns (order: channel, row, column)",
        )
    )
    validation_fraction: float = field(
        metadata=_option(
            _DATA,
            0.2,
            type=_number(0, 1, above_minimum=True),
            help="fraction of rows held out for validation",
        )
    )
    num_workers: int = field(
        metadata=_option(
            _DATA,
            0,
            type=_whole(0),
            help="data loader processes per rank; 0: load in the rank itself",
        )
    )
    epochs: int = field(metadata=_option(_AMOUNT, 1, type=_whole(1)))
    passes_per_epoch: int = field(
        metadata=_option(
            _AMOUNT, 1, type=_whole(1), help="passes over the table in one epoch (for small tables)"
        )
    )
    max_steps: int | None = field(
        metadata=_option(_AMOUNT, type=_whole(1), help="stop after this many optimizer steps")
    )
    per_replica_batch_size: int | None = field(
        metadata=_option(
            _AMOUNT,
            type=_whole(1),
            help="samples per process (b); default: derived from --global-batch-size, else 32",
        )
    )
    accumulate_grad_batches: int = field(metadata=_option(_AMOUNT, 1, type=_whole(1)))
    global_batch_size: int | None = field(
        metadata=_option(
            _AMOUNT,
            type=_whole(1),
            help="samples per step, which must equal world size x b x accumulation",
        )
    )
    incomplete_batch: str = field(
        metadata=_option(
            _AMOUNT,
            "drop",
            choices=INCOMPLETE_BATCH,
            help="what to do with samples at the end of an epoch that don't fill a batch",
        )
    )
    evaluate_every_samples: int | None = field(
        metadata=_option(
            _AMOUNT,
            type=_whole(1),
            help="samples between evaluations; default: one at the end of every epoch",
        )
    )
    model: str = field(metadata=_option(_OPTIMISATION, "ranking_mlp", choices=MODELS))
    hidden_size: int = field(
        metadata=_option(_OPTIMISATION, 256, type=_whole(1), help="width of ranking_mlp")
    )
    layers: int = field(
        metadata=_option(
            _OPTIMISATION,
            7,
            type=_whole(2),
            help="dense layers of ranking_mlp, including the last",
        )
    )
    optimizer: str = field(metadata=_option(_OPTIMISATION, "adamw", choices=OPTIMIZERS))
    learning_rate: float = field(
        metadata=_option(_OPTIMISATION, 1e-3, type=_number(0, above_minimum=True))
    )
    learning_rate_rule: str = field(
        metadata=_option(
            _OPTIMISATION,
            "none",
            choices=RULES,
            help="how to scale --learning-rate with the global batch size",
        )
    )
    base_global_batch_size: int | None = field(
        metadata=_option(
            _OPTIMISATION,
            type=_whole(1),
            help="the global batch size that --learning-rate was tuned for",
        )
    )
    warmup_steps: int = field(
        metadata=_option(
            _OPTIMISATION,
            0,
            type=_whole(0),
            help="steps over which the learning rate rises linearly",
        )
    )
    momentum: float = field(
        metadata=_option(_OPTIMISATION, 0.9, type=_number(0, 1), help="sgd only")
    )
    weight_decay: float = field(metadata=_option(_OPTIMISATION, 0.0, type=_number(0)))
    seed: int = field(metadata=_option(_OPTIMISATION, 0, type=_whole(0)))
    precision: str = field(
        metadata=_option(
            _OPTIMISATION,
            "auto",
            choices=PRECISIONS,
            help="auto: mixed bf16 or 16 if the hardware supports it, else 32",
        )
    )
    backend: str = field(
        metadata=_option(
            _CLUSTER,
            "auto",
            choices=BACKENDS,
            help="auto: nccl with a GPU, gloo without; one process uses none",
        )
    )
    strategy: str = field(
        metadata=_option(
            _CLUSTER,
            "ddp",
            choices=STRATEGIES,
            help="fsdp: PyTorch's sharding; smp: SageMaker's model parallelism 2.x",
        )
    )
    compress: str = field(
        metadata=_option(
            _CLUSTER,
            "none",
            choices=COMPRESSIONS,
            help="16-bit format of the gradients that ddp sends: fp16 (gloo, nccl) or bf16 (nccl)",
        )
    )
    process_group_timeout_seconds: float = field(
        metadata=_option(_CLUSTER, 600.0, type=_number(0, above_minimum=True))
    )
    checkpoint_dir: Path | None = field(
        metadata=_option(
            _CLUSTER,
            default_checkpoint_dir,
            type=_folder_or_none,
            help=(
                "folder to write last.ckpt to and resume from; none: write no last.ckpt; default:"
                " SageMaker's folder, if any"
            ),
        )
    )
    checkpoint_every_steps: int | None = field(
        metadata=_option(
            _CLUSTER,
            type=_whole(1),
            help="steps between writes of last.ckpt, in addition to the end of every epoch",
        )
    )
    warmup_exclude_epochs: int = field(
        metadata=_option(
            _MEASUREMENT,
            0,
            type=_whole(0),
            help="epochs excluded from the steady window; 1: the first epoch",
        )
    )
    warmup_exclude_steps: int = field(
        metadata=_option(
            _MEASUREMENT, 10, type=_whole(0), help="steps excluded from the steady window"
        )
    )
    warmup_exclude_seconds: float = field(
        metadata=_option(
            _MEASUREMENT, 30.0, type=_number(0), help="seconds excluded from the steady window"
        )
    )
    checkpoint: bool = field(
        metadata=_option(
            _MEASUREMENT, True, type=_flag, help="write the best checkpoint (True or False)"
        )
    )
    tensorboard: bool = field(
        metadata=_option(
            _MEASUREMENT, True, type=_flag, help="write TensorBoard logs (True or False)"
        )
    )
    model_dir: Path = field(
        metadata=_option(
            _MEASUREMENT,
            lambda environment: environment.get("SM_MODEL_DIR", "output/model"),
            type=Path,
        )
    )
    output_data_dir: Path = field(
        metadata=_option(
            _MEASUREMENT,
            lambda environment: environment.get("SM_OUTPUT_DATA_DIR", "output/data"),
            type=Path,
        )
    )
    tensorboard_dir: Path | None = field(
        metadata=_option(
            _MEASUREMENT,
            # /opt/ml/output/tensorboard if SageMaker uploads it to S3 during the run
            lambda environment: environment.get("TENSORBOARD_DIR"),
            type=Path,
            help="default: tensorboard under --output-data-dir",
        )
    )


def build_parser(environment: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """Return the parser; defaults of folders come from the SageMaker variables in `environment`."""
    parser = _Parser(
        prog="train.py",
        description="Train a model on one or more nodes and measure its speed.",
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for each in fields(TrainingArguments):
        options = dict(each.metadata)
        title, default = options.pop("group"), options.pop("default")
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        options["default"] = default(environment) if callable(default) else default
        groups[title].add_argument(f"--{each.name.replace('_', '-')}", **options)
    groups[_CLUSTER].add_argument(
        "--mp_parameters",
        type=_model_parallel_parameters,
        default=None,
        help=(
            "passed by SageMaker's toolkit under kind smp_v2; checked here, read by the library"
            " itself"
        ),
    )
    return parser


def parse_arguments(
    argv: Sequence[str], environment: Mapping[str, str] = os.environ
) -> TrainingArguments:
    """Parse and check `argv`.

    Raises:
        UserError: An argument is missing or invalid; argparse alone would print its usage and exit
            with 2.
    """
    values = vars(build_parser(environment).parse_args(argv))
    if values["data"] is None:
        raise UserError(
            "--data is missing and SM_CHANNEL_TRAINING is not set: set --data to the tables' folder"
        )
    if values["mp_parameters"] is not None:
        _check_model_parallel(values["mp_parameters"], values["strategy"])
    return TrainingArguments(**{each.name: values[each.name] for each in fields(TrainingArguments)})
