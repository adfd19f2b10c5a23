"""Facts about a distribution option that an image's name shows, and the hints of a plan."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

import pytest

from nodesweep.scaling.rules import offline
from nodesweep.scaling.rules.images import parse_image
from tests.nodesweep.scaling.rules.facts import facts_of

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SMP = (
    "658645717510.dkr.ecr.us-east-1.amazonaws.com/smdistributed-modelparallel:2.4.1-gpu-py311-cu121"
)
SMP_V1 = {"kind": "smp_v1", "partitions": 2, "ddp": True}
SMP_V2 = {"kind": "smp_v2", "hybrid_shard_degree": 8}
MPI_KINDS = ["mpi", "horovod", "pytorchddp", "smddp", "smp_v1"]


# -- images ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "facts"),
    [
        (f"{DLC}/pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker",
         ("pytorch-training", (2, 5, 1), "gpu", "124")),
        (f"{DLC}/pytorch-training:1.12.0-cpu-py38-ubuntu20.04-sagemaker@sha256:{'a' * 64}",
         ("pytorch-training", (1, 12, 0), "cpu", None)),
        (f"{DLC}/pytorch:2.13-cu133-amzn2023-sagemaker", ("pytorch", (2, 13), "gpu", "133")),
        (f"{DLC}/pytorch:2.14-cpu-amzn2023-sagemaker", ("pytorch", (2, 14), "cpu", None)),
        (f"{DLC}.cn/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
         ("pytorch-training-neuronx", (2, 9, 0), "neuron", None)),
        (SMP, ("smdistributed-modelparallel", (2, 4, 1), "gpu", "121")),
        (f"{DLC}/pytorch-training@sha256:{'a' * 64}", None),
        (f"{DLC}/pytorch-training:latest", None),
        (f"{DLC}/tensorflow-training:2.11.0-gpu-py39-cu112", None),
        ("python:3.11", None),
    ],
)  # fmt: skip
def test_what_an_images_name_tells(uri, facts):
    image = parse_image(uri)
    found = image and (image.repository, image.version, image.device, image.cuda)
    assert found == facts


SMDDP_LAST = f"{DLC}/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker"


@pytest.mark.parametrize(
    ("raw", "instance_type", "uri", "fits"),
    [
        ({"kind": "smddp"}, "ml.p4d.24xlarge", SMDDP_LAST, True),
        ({"kind": "smddp"}, "ml.p4d.24xlarge", SMP, True),
        ({"kind": "smddp"}, "ml.p4d.24xlarge", SMP.replace("2.4.1", "2.0.1"), False),
        ({"kind": "smddp"}, "ml.p4d.24xlarge", SMDDP_LAST.replace("2.3.0", "2.6.0"), False),
        (
            {"kind": "smddp"},
            "ml.p4d.24xlarge",
            f"{DLC}/pytorch-training:2.0.1-gpu-py310-cu121",
            False,
        ),
        (
            {"kind": "smddp"},
            "ml.p4d.24xlarge",
            f"{DLC}/pytorch-training:2.0.1-gpu-py310-cu118",
            True,
        ),
        ({"kind": "smddp"}, "ml.p4d.24xlarge", f"{DLC}/pytorch-training:2.2.0-cpu-py310", False),
        (
            SMP_V1,
            "ml.p3.16xlarge",
            f"{DLC}/pytorch-training:1.12.0-gpu-py38-cu113-ubuntu20.04-sagemaker",
            True,
        ),
        (SMP_V1, "ml.p3.16xlarge", SMDDP_LAST, False),
        (SMP_V1, "ml.p3.16xlarge", f"{DLC}/pytorch-training:2.0.1-gpu-py310-cu121", False),
        (SMP_V2, "ml.p4d.24xlarge", SMP, True),
        (SMP_V2, "ml.p4d.24xlarge", SMDDP_LAST, False),
        (
            {"kind": "torch_distributed"},
            "ml.p4d.24xlarge",
            f"{DLC}/pytorch-training:1.12.1-gpu-py38-cu113",
            False,
        ),
        (
            {"kind": "torch_distributed"},
            "ml.p4d.24xlarge",
            f"{DLC}/pytorch-training:1.13.1-gpu-py39-cu117",
            True,
        ),
        (
            {"kind": "pytorchddp"},
            "ml.p4d.24xlarge",
            f"{DLC}/pytorch-training:1.10.2-gpu-py38-cu113",
            False,
        ),
        (
            {"kind": "pytorchddp"},
            "ml.p4d.24xlarge",
            f"{DLC}/pytorch-training:1.11.0-gpu-py38-cu113",
            True,
        ),
        (
            {"kind": "trainium"},
            "ml.trn1.32xlarge",
            f"{DLC}/pytorch-training-neuronx:2.9.0-neuronx-py312",
            True,
        ),
        ({"kind": "trainium"}, "ml.trn1.32xlarge", SMDDP_LAST, False),
    ],
)
def test_the_container_must_carry_the_option(raw, instance_type, uri, fits, check):
    problems = check(raw, instance_type, {"uri": uri})[0]
    assert [
        problem.startswith(f"image.uri: {uri} is ") and " needs " in problem for problem in problems
    ] == [True] * (not fits)


@pytest.mark.parametrize(
    "image",
    [{"base_image": f"{DLC}/pytorch:2.13-cu133-amzn2023-sagemaker"},
     {"uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/"
             "pytorch-training:2.6.0-gpu-py312-cu126"}],
    ids=["base", "own account"],
)  # fmt: skip
def test_what_is_built_upon_gives_a_hint_instead(image, check, snapshot):
    problems, hints = check({"kind": "smddp"}, "ml.p4d.24xlarge", image)
    assert problems == []
    assert hints == snapshot


# -- hints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MPI_KINDS)
def test_mpi4py_is_asked_for_where_it_may_be_missing(kind, check, snapshot):
    raw = SMP_V1 if kind == "smp_v1" else {"kind": kind}
    new, old = (
        f"{DLC}/pytorch:2.11-cu130-amzn2023-sagemaker",
        f"{DLC}/pytorch-training:2.10.0-gpu-py313-cu130",
    )
    assert check(raw, "ml.p4d.24xlarge", {"base_image": new})[1] == snapshot
    assert any("mpi4py" in hint for hint in check(raw, "ml.p4d.24xlarge")[1])
    assert not any(
        "mpi4py" in hint for hint in check(raw, "ml.p4d.24xlarge", {"base_image": old})[1]
    )
    cpu = f"{DLC}/pytorch:2.14-cpu-amzn2023-sagemaker"
    assert not any(
        "mpi4py" in hint for hint in check(raw, "ml.p4d.24xlarge", {"base_image": cpu})[1]
    )


@pytest.mark.parametrize(
    "raw", [{"kind": "smddp"}, SMP_V1, SMP_V2, {"kind": "trainium"}], ids=lambda raw: raw["kind"]
)
def test_an_emulated_node_rehearses_the_launch_of_awss_own_libraries(raw, check, snapshot):
    hints = check(raw, "ml.local.small")[1]
    assert hints == snapshot


def test_parameter_server_says_what_it_is(check, snapshot):
    assert check({"kind": "parameter_server"}, "ml.m5.xlarge")[1] == snapshot


def test_smddp_on_p3_says_what_to_expect(check, snapshot):
    hints = check({"kind": "smddp"}, "ml.p3.16xlarge")[1]
    assert [
        hint for hint in hints if hint not in check({"kind": "smddp"}, "ml.p4d.24xlarge")[1]
    ] == snapshot


def test_hints_refuse_nothing(make_config):
    config = make_config(training={"distribution": {"kind": "parameter_server"}})
    found = offline.check(facts_of(config))
    assert found.problems == () and len(found.hints) == 1


# -- tags with two numbers -------------------------------------------------------------------------


def test_a_tag_with_two_numbers_is_the_release_that_the_sdk_means() -> None:
    table = distribution("sagemaker-core").locate_file(
        "sagemaker/core/image_uri_config/pytorch.json"
    )
    aliases = json.loads(Path(str(table)).read_bytes())["training"]["version_aliases"]
    meant = {
        short: parse_image(f"{DLC}/pytorch-training:{short}-gpu-py3").version_text
        for short in aliases
    }
    assert meant == aliases
    assert parse_image(f"{DLC}/pytorch:2.13-cu133-amzn2023-sagemaker").version_text == "2.13"


def test_a_short_version_has_what_its_release_has(check):
    image = {
        "base_image": f"{DLC}/pytorch-training:2.3-gpu-py311",
        "context": "infra/image",
        "build_args": {"REQUIREMENTS": "requirements-on-dlc.lock"},
    }
    assert check({"kind": "smddp"}, "ml.p4d.24xlarge", image)[0] == []
