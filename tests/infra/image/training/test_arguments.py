from __future__ import annotations

from pathlib import Path

import pytest
from training.arguments import default_checkpoint_dir, parse_arguments
from training.errors import UserError


def test_defaults_come_from_the_sagemaker_variables() -> None:
    environment = {"SM_CHANNEL_TRAINING": "/in", "SM_MODEL_DIR": "/m", "SM_OUTPUT_DATA_DIR": "/o"}
    arguments = parse_arguments([], environment)
    assert arguments.tensorboard_dir is None
    assert parse_arguments([], {**environment, "TENSORBOARD_DIR": "/t"}).tensorboard_dir == Path(
        "/t"
    )
    assert (arguments.data, arguments.model_dir, arguments.output_data_dir) == (
        Path("/in"),
        Path("/m"),
        Path("/o"),
    )
    assert (arguments.layers, arguments.max_steps, arguments.precision) == (7, None, "auto")


def test_hyperparameters_arrive_as_the_toolkit_writes_them() -> None:
    argv = ["--data", "d", "--max-steps", "7", "--checkpoint", "False", "--learning-rate", "0.01"]
    arguments = parse_arguments(argv, {})
    assert (arguments.max_steps, arguments.checkpoint, arguments.learning_rate) == (7, False, 0.01)


def test_the_toolkits_model_parallel_parameters_are_taken() -> None:
    given = "allow_empty_shards=False,hybrid_shard_degree=8,tensor_parallel_degree=1"
    argv = ["--data", "d", "--mp_parameters", given, "--strategy", "smp"]
    assert parse_arguments(argv, {}).strategy == "smp"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--mp_parameters", "hybrid_shard_degree"],
            "--mp_parameters: got 'hybrid_shard_degree', expected name=value,…",
        ),
        (
            ["--mp_parameters", "", "--strategy", "smp"],
            "--mp_parameters: got '', expected name=value,…",
        ),
        (
            ["--mp_parameters", "hybrid_shard_degree=8"],
            "--strategy ddp",
        ),
        (["--mp_parameters", "ddp=True,partitions=2", "--strategy", "smp"], "use kind smp_v2"),
        (
            [
                "--mp_parameters",
                "hybrid_shard_degree=8,tensor_parallel_degree=2",
                "--strategy",
                "smp",
            ],
            "tensor_parallel_degree=2",
        ),
        (["--epochs", "0"], "--epochs: got 0"),
        (["--epochs", "two"], "--epochs: got 'two'"),
        (["--validation-fraction", "1"], "> 0 and < 1"),
        (["--learning-rate", "0"], "--learning-rate: got 0"),
        (["--checkpoint", "yes"], "--checkpoint: got 'yes'"),
        (["--model", "bert"], "invalid choice: 'bert'"),
        (["--epoch", "3"], "unrecognized arguments: --epoch 3"),
    ],
)
def test_a_bad_argument_is_named_with_what_is_allowed(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments(["--data", "d", *argv], {})
    assert message in str(caught.value)


def test_missing_data_folder_says_what_to_set() -> None:
    with pytest.raises(UserError, match=r"--data .*SM_CHANNEL_TRAINING"):
        parse_arguments([], {})


def test_checkpoints_go_where_sagemaker_keeps_them_or_nowhere(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    environment = {"SAGEMAKER_BASE_DIR": str(tmp_path), "SM_CHANNEL_TRAINING": "d"}
    # the folder alone says nothing in a redirected tree
    assert default_checkpoint_dir(environment) is None
    config = tmp_path / "input" / "config" / "checkpointconfig.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"S3Uri": "s3://b/c"}')
    assert default_checkpoint_dir(environment) == tmp_path / "checkpoints"
    config.write_text('{"LocalPath": "/opt/ml/kept"}')
    assert parse_arguments([], environment).checkpoint_dir == Path("/opt/ml/kept")
    assert parse_arguments(["--checkpoint-dir", "none"], environment).checkpoint_dir is None
    assert parse_arguments(["--checkpoint-dir", "c"], environment).checkpoint_dir == Path("c")
