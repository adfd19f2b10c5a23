"""Requirements of the shipped program: a container that lacks them is refused before a job is
sent."""

from __future__ import annotations

import pytest

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SMP = (
    "658645717510.dkr.ecr.us-east-1.amazonaws.com/smdistributed-modelparallel:2.4.1-gpu-py311-cu121"
)
V2_0 = f"{DLC}/pytorch-training:2.0.1-gpu-py310-cu118-ubuntu20.04-sagemaker"
V2_3 = f"{DLC}/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker"
V2_6 = f"{DLC}/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker"
NEURON = f"{DLC}/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
TORCHRUN, SMP_V2 = {"kind": "torch_distributed"}, {"kind": "smp_v2", "hybrid_shard_degree": 8}


def shipped(base_image: str, requirements: str = "requirements-on-dlc.lock") -> dict:
    return {
        "context": "../infra/image",
        "base_image": base_image,
        "build_args": {"REQUIREMENTS": requirements},
    }


def arguments(**own: str) -> dict:
    return {"b": "{global_batch_size}", "lr": "{learning_rate}", **own}


@pytest.mark.parametrize(
    ("base_image", "own"),
    [
        pytest.param(V2_0, {}, id="old PyTorch"),
        pytest.param(V2_3, {"strategy": "fsdp"}, id="FSDP 2"),
        pytest.param(V2_6, {"backend": "smddp"}, id="SMDDP"),
        pytest.param(V2_3, {"strategy": "smp"}, id="SMP"),
        pytest.param(V2_6, {"backend": "xla"}, id="XLA"),
    ],
)
def test_a_container_without_what_the_program_imports_is_refused(base_image, own, check, snapshot):
    image = shipped(base_image)
    (problem,) = check(TORCHRUN, "ml.p4d.24xlarge", image, hyperparameters=arguments(**own))[0]
    assert "; " in problem, "a problem says what to do"
    assert problem == snapshot


@pytest.mark.parametrize(
    ("base_image", "own"),
    [
        (V2_3, {}),
        (V2_3, {"strategy": "ddp", "backend": "smddp"}),
        (V2_6, {"strategy": "fsdp", "backend": "nccl"}),
        (SMP, {"strategy": "smp"}),
    ],
)
def test_a_container_with_what_the_program_imports_passes(base_image, own, check):
    image = shipped(base_image)
    assert check(TORCHRUN, "ml.p4d.24xlarge", image, hyperparameters=arguments(**own))[0] == []


def test_xla_has_its_container(check):
    assert check(
        {"kind": "trainium"},
        "ml.trn1.32xlarge",
        shipped(NEURON),
        hyperparameters=arguments(backend="xla"),
    ) == (
        [],
        [],
    )


def test_every_missing_piece_is_named(check):
    problems = check(
        TORCHRUN,
        "ml.p4d.24xlarge",
        shipped(V2_0),
        hyperparameters=arguments(backend="xla", strategy="smp"),
    )
    assert [problem.partition(" needs ")[0].partition(": ")[2] for problem in problems[0][1:]] == [
        "backend xla",
        "strategy smp",
    ]


@pytest.mark.parametrize(
    ("image", "training"),
    [
        (shipped(V2_0, "requirements.txt"), {}),  # brings its own torch
        (shipped(V2_0), {"source_dir": "code"}),
        ({**shipped(V2_0), "context": "mine"}, {}),
        ({"uri": V2_0, "context": "../infra/image"}, {"source_dir": "code"}),
    ],
)
def test_another_program_has_needs_of_its_own(image, training, check):
    problems = check(
        TORCHRUN, "ml.p4d.24xlarge", image, hyperparameters=arguments(strategy="fsdp"), **training
    )[0]
    assert problems == []


@pytest.mark.parametrize(
    ("distribution", "instance_type", "base_image", "own", "fitting"),
    [
        ({"kind": "smddp"}, "ml.p4d.24xlarge", V2_3, {"backend": "nccl"}, {"backend": "smddp"}),
        (SMP_V2, "ml.p4d.24xlarge", SMP, {}, {"strategy": "smp"}),
        ({"kind": "trainium"}, "ml.trn1.32xlarge", NEURON, {}, {"backend": "xla"}),
    ],
)
def test_a_library_that_the_program_does_not_use_is_said(
    distribution, instance_type, base_image, own, fitting, check, snapshot
):
    hints = check(
        distribution, instance_type, shipped(base_image), hyperparameters=arguments(**own)
    )[1]
    (option,) = fitting
    unused = f"training.hyperparameters: {option} is {own.get(option, 'not set')}, "
    assert [hint for hint in hints if hint.startswith(unused)] == snapshot
    for image, hyperparameters in (
        (shipped(base_image), arguments(**fitting)),
        ({"context": "mine"}, arguments(**own)),
    ):
        said = check(distribution, instance_type, image, hyperparameters=hyperparameters)[1]
        assert not [hint for hint in said if hint.startswith(f"training.hyperparameters: {option}")]


@pytest.mark.parametrize(
    ("instance_type", "own", "is_refused"),
    [
        ("ml.m5.xlarge", {"compress": "fp16"}, False),
        ("ml.m5.xlarge", {"compress": "bf16"}, True),
        ("ml.p4d.24xlarge", {"compress": "bf16"}, False),
        ("ml.p4d.24xlarge", {"compress": "bf16", "backend": "gloo"}, True),
        ("ml.p4d.24xlarge", {"compress": "fp16", "strategy": "fsdp"}, True),
        ("ml.p4d.24xlarge", {"compress": "none", "strategy": "fsdp"}, False),
    ],
)
def test_gradients_are_compressed_where_ddp_can(instance_type, own, is_refused, check, snapshot):
    image = shipped(V2_6, "requirements.txt")
    problems = check(TORCHRUN, instance_type, image, hyperparameters=arguments(**own))[0]
    assert len(problems) == is_refused
    if is_refused:
        assert problems == snapshot
    image["context"] = "mine"
    assert check(TORCHRUN, instance_type, image, hyperparameters=arguments(**own))[0] == []


@pytest.mark.parametrize(
    ("distribution", "base_image"),
    [
        ({"kind": "smddp"}, V2_6),
        (SMP_V2, V2_6),
    ],
)
def test_a_base_without_the_library_is_refused_for_the_shipped_program(
    distribution, base_image, check, snapshot
):
    problems, hints = check(distribution, "ml.p4d.24xlarge", shipped(base_image))
    assert problems == snapshot
    assert problems[0] == snapshot
    mine = check(distribution, "ml.p4d.24xlarge", {**shipped(base_image), "context": "mine"})
    assert mine[0] == []
    assert mine[1] == snapshot, "what is built on it may bring it"
    assert hints == snapshot, "said once"
