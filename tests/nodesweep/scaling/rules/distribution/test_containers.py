"""AWS containers and the instance types that they fit; each rule with a config that breaks it."""

from __future__ import annotations

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.rules.distribution.containers import GPUS
from tests.nodesweep.scaling.rules.facts import check_distribution, facts_of

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SMP = "658645717510.dkr.ecr.us-east-1.amazonaws.com/smdistributed-modelparallel"
TORCHRUN = {"kind": "torch_distributed"}
SHIPPED = {"context": "infra/image", "build_args": {"REQUIREMENTS": "requirements-on-dlc.lock"}}


def uri(tag: str, repository: str = "pytorch-training") -> str:
    return f"{DLC}/{repository}:{tag}"


def about(word: str, sentences: list[str]) -> list[str]:
    return [sentence for sentence in sentences if word in sentence]


@pytest.mark.parametrize(
    ("tag", "repository", "instance_type"),
    [
        ("2.13-cu133-amzn2023-sagemaker", "pytorch", "ml.p3.16xlarge"),
        ("2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker", "pytorch-training", "ml.p3dn.24xlarge"),
        ("2.7.1-gpu-py312-cu128-ubuntu22.04-sagemaker", "pytorch-training", "ml.p3.2xlarge"),
        # the SDK's short tag
        ("2.8.0-gpu-py312", "pytorch-training", "ml.p3.2xlarge"),
        ("2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker", "pytorch-training", "ml.p2.xlarge"),
        ("2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", "pytorch-training", "ml.p6-b200.48xlarge"),
        ("2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", "pytorch-training", "ml.p6-b300.48xlarge"),
        ("2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", "pytorch-training", "ml.g7e.12xlarge"),
        ("1.13.1-gpu-py39-cu117-ubuntu20.04-sagemaker", "pytorch-training", "ml.p5.48xlarge"),
        ("1.6.0-gpu-py36-cu101-ubuntu16.04-sagemaker", "pytorch-training", "ml.p4d.24xlarge"),
    ],
)
def test_a_gpu_that_the_cuda_has_no_code_for_is_refused(
    tag, repository, instance_type, check, snapshot
):
    gpu = load_catalogue().get(instance_type).accelerator
    problems = check({"kind": "none"}, instance_type, {"uri": uri(tag, repository)})[0]
    (problem,) = about(f" {gpu} of {instance_type}", problems)
    assert problem == snapshot


@pytest.mark.parametrize(
    ("tag", "instance_type"),
    [
        ("2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", "ml.p3.16xlarge"),
        ("2.0.1-gpu-py310-cu118-ubuntu20.04-sagemaker", "ml.p2.xlarge"),
        ("2.0.1-gpu-py310-cu118-ubuntu20.04-sagemaker", "ml.p5.48xlarge"),
        # 8.9 runs what was compiled for 8.0
        ("1.12.0-gpu-py38-cu113-ubuntu20.04-sagemaker", "ml.g6e.xlarge"),
        ("2.7.1-gpu-py312-cu128-ubuntu22.04-sagemaker", "ml.p6-b300.48xlarge"),
        ("2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker", "ml.g4dn.xlarge"),
        ("2.10.0-gpu-py313", "ml.g5.xlarge"),
    ],
)
def test_a_gpu_that_the_cuda_has_code_for_passes(tag, instance_type, check):
    problems, hints = check({"kind": "none"}, instance_type, {"uri": uri(tag)})
    assert about("CUDA", problems + hints) == []


BASE = uri("2.13-cu133-amzn2023-sagemaker", "pytorch")


def test_the_shipped_program_on_a_container_is_held_to_it(check, snapshot):
    problems, hints = check(TORCHRUN, "ml.p3.16xlarge", {**SHIPPED, "base_image": BASE})
    (problem,) = about("V100", problems)
    assert problem == snapshot
    assert about("V100", hints) == []


@pytest.mark.parametrize(
    ("image", "training"),
    [
        ({"context": "mine", "build_args": SHIPPED["build_args"]}, {}),
        ({"context": "infra/image"}, {}),  # requirements.txt brings its own torch
        (SHIPPED, {"source_dir": "code"}),  # whose requirements.txt may
    ],
)
def test_what_was_built_on_a_container_may_have_another_cuda(image, training, check):
    problems, hints = check(TORCHRUN, "ml.p3.16xlarge", {**image, "base_image": BASE}, **training)
    assert about("V100", problems) == []
    assert len(about("V100", hints)) == 1


@pytest.mark.parametrize(
    "image", ["123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:cu133", "mine:1"]
)
def test_nothing_is_assumed_of_an_unknown_image(image, check):
    assert about("CUDA", [*check(TORCHRUN, "ml.p3.16xlarge", {"uri": image})[0]]) == []


def test_a_tag_without_cuda_is_said(check, snapshot):
    image = uri("2.0.1-gpu-py310")
    (hint,) = about("CUDA", check(TORCHRUN, "ml.p5.48xlarge", {"uri": image})[1])
    assert hint == snapshot


def test_every_gpu_of_the_catalogue_is_known():
    models = {row.accelerator for row in load_catalogue().instances if row.accelerator}
    assert {model for model in models if not model.startswith("Trainium")} == set(GPUS)


def test_an_arm_processor_starts_no_x86_container(check, snapshot):
    image = {"uri": uri("2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker")}
    problems = check({**TORCHRUN, "processes_per_node": 4}, "ml.p6e-gb200.36xlarge", image)[0]
    assert [problem.partition(";")[0] for problem in problems] == snapshot


NEURON = uri("2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04", "pytorch-training-neuronx")
CPU = uri("2.6.0-cpu-py312-ubuntu22.04-sagemaker")
GPU = uri("2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker")


@pytest.mark.parametrize(
    ("image", "instance_type"),
    [
        (CPU, "ml.g5.12xlarge"),
        (GPU, "ml.m5.xlarge"),
        (GPU, "ml.trn1.32xlarge"),
        (NEURON, "ml.g5.12xlarge"),
        (GPU, "ml.g5.12xlarge"),
        (CPU, "ml.m5.xlarge"),
        (NEURON, "ml.trn1.32xlarge"),
        (CPU, "ml.local.small"),
        (GPU, "ml.local.small"),
    ],
)
def test_a_container_for_another_device_is_a_hint(image, instance_type, check, snapshot):
    hints = about("made for", check(TORCHRUN, instance_type, {"uri": image})[1])
    assert hints == snapshot


@pytest.mark.parametrize(
    ("tag", "said", "refused"),
    [
        ("2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker", False, False),
        ("2.4.0-gpu-py311-cu124-ubuntu22.04-sagemaker", True, False),
        ("2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker", True, False),
        ("2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", False, True),
    ],
)
def test_smddp_in_a_container_that_was_given_it_later(tag, said, refused, check, snapshot):
    image = {"uri": uri(tag)}
    problems, hints = (
        about("SMDDP", found) for found in check({"kind": "smddp"}, "ml.p4d.24xlarge", image)
    )
    assert (len(hints), len(problems)) == (said, refused)
    assert hints + problems == snapshot
    assert not {*hints} & {*check(TORCHRUN, "ml.p4d.24xlarge", image)[1]}


def test_unknown_gpus_are_said(make_config, snapshot):
    row = load_catalogue().get("ml.p2.xlarge").model_copy(update={"accelerator": None})
    config = make_config(training={"instance_type": "ml.p2.xlarge"}, image={"uri": GPU})
    problems, hints = check_distribution(facts_of(config, row))
    assert about("CUDA", problems) == []
    (hint,) = about("GPUs of", hints)
    assert hint == snapshot
