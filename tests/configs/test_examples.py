"""Every example config is accepted by `nodesweep plan` and `nodesweep requests`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodesweep.cli.main import main
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.configs.load import load_config
from nodesweep.scaling.rules.distribution import OPTIONS, option_of

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EXAMPLES = sorted((CONFIGS / "examples").glob("*.yaml"))
REFERENCE = [CONFIGS / "search_mlp_p3.yaml", CONFIGS / "local.yaml"]


def distribution_in(path: Path) -> DistributionConfig:
    return load_config(path).training.distribution


def test_every_kind_has_an_example() -> None:
    kinds = {option_of(distribution_in(path)).kind for path in EXAMPLES + REFERENCE}
    assert kinds == {option.kind for option in OPTIONS}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_planned(path: Path) -> None:
    result = CliRunner().invoke(main, ["plan", str(path)])
    assert result.exit_code == 0, result.output
    assert load_config(path).name in result.output


DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
BROKEN = [
    ("search_mlp_p3", f"image.base_image={DLC}/pytorch:2.13-cu133-amzn2023-sagemaker",
     ["no code for the V100"]),
    ("search_mlp_p3", "training.hyperparameters.strategy=fsdp", ["strategy fsdp is FSDP 2"]),
    ("search_mlp_p3",
     f"image.base_image={DLC}/pytorch-training:2.0.1-gpu-py310-cu118-ubuntu20.04-sagemaker",
     ["the shipped program needs 2.1 or later"]),
    ("examples/lightning_smddp_p4d",
     f"image.base_image={DLC}/pytorch-training:2.6.0-gpu-py312-cu126-sagemaker",
     ["kind smddp needs a container with SMDDP", "backend smddp needs a container with SMDDP"]),
    ("examples/smp_v2_p4d", f"image.base_image={DLC}/pytorch:2.13-cu133-amzn2023-sagemaker",
     ["kind smp_v2 needs the SMP container", "strategy smp needs the SMP container"]),
    ("examples/torchrun_p4d", "training.instance_type=ml.p2.16xlarge", ["no code for the K80"]),
    ("examples/mpi_g5", "training.instance_type=ml.p6-b200.48xlarge", ["no code for the B200"]),
    ("examples/own_code_g5", "training.instance_type=ml.p6-b200.48xlarge",
     ["no code for the B200"]),
    ("examples/trainium_trn1", "training.instance_type=ml.trn2.48xlarge",
     ["the world size is unknown; set it"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "texts"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_config_whose_container_does_not_fit_is_refused(
    name: str, change: str, texts: list[str]
) -> None:
    result = CliRunner().invoke(main, ["plan", str(CONFIGS / f"{name}.yaml"), "--set", change])
    assert result.exit_code == 3, result.output
    said = " ".join(result.output.split())
    assert [text for text in texts if text not in said] == [], "every problem at once"


@pytest.mark.parametrize("path", [*EXAMPLES, REFERENCE[0]], ids=lambda path: path.stem)
def test_an_example_gives_one_request_per_job(path: Path) -> None:
    result = CliRunner().invoke(main, ["requests", str(path)])
    assert result.exit_code == 0, result.output
    requests, config = json.loads(result.stdout), load_config(path)
    assert len(requests) == config.sweep.most_jobs
    own = {
        "sagemaker_program",
        "sagemaker_container_log_level",
        "sagemaker_region",
        "sagemaker_job_name",
    }
    launch = set(requests[0]["HyperParameters"]) - own - set(config.training.hyperparameters)
    assert launch, "the distribution reaches the request"


def test_the_model_parallel_example_is_the_documented_one() -> None:
    # AWS developer guide, "Run a distributed model parallel training job": 2 partitions, 4
    # micro-batches, 8 processes.
    result = CliRunner().invoke(
        main, ["requests", str(CONFIGS / "examples" / "smp_v1_mnist_p3.yaml")]
    )
    sent = json.loads(result.stdout)[0]["HyperParameters"]
    assert json.loads(sent["mp_parameters"]) == {
        "partitions": 2,
        "microbatches": 4,
        "placement_strategy": "spread",
        "pipeline": "interleaved",
        "optimize": "speed",
        "ddp": True,
    }
    assert sent["sagemaker_mpi_num_of_processes_per_host"] == "8"


def test_own_code_without_a_context_runs_in_awss_container_as_it_is() -> None:
    result = CliRunner().invoke(main, ["requests", str(CONFIGS / "examples" / "own_code_g5.yaml")])
    for request in json.loads(result.stdout):
        container = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311"
        assert request["AlgorithmSpecification"]["TrainingImage"] == container
        assert json.loads(request["HyperParameters"]["sagemaker_program"]) == "plain_ddp.py"
        assert json.loads(request["HyperParameters"]["sagemaker_submit_directory"]).startswith(
            "s3://nodesweep-"
        )
