from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import FrameworkConfig, ImageConfig, PlatformConfig
from nodesweep.errors import PreflightRefused
from nodesweep.launch.registry import backend_of
from nodesweep.tasks.image import bases as image_bases
from nodesweep.tasks.image.bases import (
    device_of,
    framework_image,
    pin_base_images,
    pin_container,
    with_container,
)
from nodesweep.tasks.image.find import Images
from tests.tasks.image.image_fakes import make_context, push

DLC = "123456789012.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"
CPU, GPU, NEURON = (
    load_catalogue().get(f"ml.{name}") for name in ("m5.xlarge", "g5.xlarge", "trn1.2xlarge")
)


def test_base_in_ecr_is_pinned_by_the_digest_of_its_tag(
    aws: Callable[[str], Any], tmp_path: Path, platform: PlatformConfig
) -> None:
    ecr = aws("ecr")
    ecr.create_repository(repositoryName="pytorch-training")
    digest = push(ecr, "2.5-gpu-py311", "pytorch-training")
    config = make_context(tmp_path, "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n")
    reference = f"{DLC}:2.5-gpu-py311"
    assert pin_base_images(Images(backend_of(platform), config), {"BASE_IMAGE": reference}) == {
        reference: f"{DLC}@{digest}"
    }


def test_base_outside_ecr_counts_by_its_name_with_a_warning(
    aws: Callable[[str], Any],
    tmp_path: Path,
    platform: PlatformConfig,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    aws("ecr")
    assert (
        pin_base_images(
            Images(backend_of(platform), make_context(tmp_path, "FROM python:3.11\n")), {}
        )
        == {}
    )
    assert caplog.messages == snapshot


def test_base_that_ecr_has_no_repository_for_is_no_warning(
    aws: Callable[[str], Any],
    tmp_path: Path,
    platform: PlatformConfig,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    """This is the first run of the shipped config on this machine, whose nodes need no base
    image."""
    caplog.set_level(logging.INFO, "nodesweep.image")
    aws("ecr")
    assert (
        pin_base_images(
            Images(backend_of(platform), make_context(tmp_path, f"FROM {DLC}:none\n")), {}
        )
        == {}
    )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == snapshot


def test_missing_tag_of_a_base_is_a_warning(
    aws: Callable[[str], Any],
    tmp_path: Path,
    platform: PlatformConfig,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    aws("ecr").create_repository(repositoryName="pytorch-training")
    assert (
        pin_base_images(
            Images(backend_of(platform), make_context(tmp_path, f"FROM {DLC}:none\n")), {}
        )
        == {}
    )
    assert caplog.messages == snapshot


def test_pinned_base_and_scratch_are_not_asked_for(
    tmp_path: Path, platform: PlatformConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    dockerfile = f"FROM {DLC}@sha256:{'a' * 64} AS one\nFROM scratch\n"
    assert (
        pin_base_images(Images(backend_of(platform), make_context(tmp_path, dockerfile)), {}) == {}
    )
    assert (
        pin_base_images(
            Images(backend_of(platform), ImageConfig(context=str(tmp_path / "nowhere"))), {}
        )
        == {}
    )
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (
            ClientError(
                {"Error": {"Code": "ThrottlingException", "Message": "slow"}}, "BatchGetImage"
            ),
            True,
        ),
        (
            ClientError(
                {"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "BatchGetImage"
            ),
            False,
        ),
        (EndpointConnectionError(endpoint_url="https://ecr.us-east-1"), False),
    ],
)
def test_only_a_call_that_may_succeed_later_is_an_error(
    tmp_path: Path,
    platform: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    raised: bool,
) -> None:
    class Ecr:
        def batch_get_image(self, **query: Any) -> None:
            raise error

    monkeypatch.setattr(image_bases, "aws_client", lambda *place, **options: Ecr())
    config = make_context(tmp_path, f"FROM {DLC}:1\n")
    if raised:
        with pytest.raises(ClientError):
            pin_base_images(Images(backend_of(platform), config), {})
    else:
        assert pin_base_images(Images(backend_of(platform), config), {}) == {}


def test_device_follows_the_instance_type(snapshot: SnapshotAssertion) -> None:
    assert [device_of(instance) for instance in (CPU, GPU, NEURON)] == ["cpu", "gpu", "neuron"]
    unknown = GPU.model_copy(update={"accelerator": None})
    with pytest.raises(PreflightRefused) as refused:
        device_of(unknown)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    ("framework", "region", "instance", "uri"),
    [
        ({"version": "2.5", "python": "py311"}, "us-east-1", GPU,
         "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5-gpu-py311"),
        ({"version": "2.5.1"}, "cn-north-1", CPU,
         "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.5.1-cpu-py311"),
        ({"version": "2.5", "accelerator": "gpu"}, "us-east-1", CPU,
         "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5-gpu-py311"),
        ({"version": "2.13"}, "eu-west-1", GPU,
         "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch:2.13-cu133-amzn2023-sagemaker"),
        ({"version": "2.13"}, "eu-west-1", CPU,
         "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch:2.13-cpu-amzn2023-sagemaker"),
        ({"version": "1.11"}, "us-east-1", NEURON,
         "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training-neuron:1.11-neuron-py38-sdk2.4.0-ubuntu20.04"),
    ],
)  # fmt: skip
def test_container_of_a_version_is_looked_up_for_region_and_device(
    framework: dict[str, str], region: str, instance: Any, uri: str
) -> None:
    assert framework_image(FrameworkConfig(**framework), region, instance) == uri


@pytest.mark.parametrize(
    ("framework", "region", "instance", "message"),
    [
        ({"version": "9.9"}, "us-east-1", GPU, r"version: 9\.9"),
        ({"version": "2.5", "python": "py37"}, "us-east-1", GPU,
         "version: py37"),
        ({"version": "2.5"}, "xx-east-1", GPU, "region: xx-east-1"),
        ({"version": "2.9"}, "us-east-1", NEURON,
         r"version 2\.9, only .*neuron:1\.11\.0"),
    ],
)  # fmt: skip
def test_container_that_is_not_there_is_refused(
    framework: dict[str, str], region: str, instance: Any, message: str
) -> None:
    with pytest.raises(PreflightRefused, match=rf"image\.framework: .*{message}"):
        framework_image(FrameworkConfig(**framework), region, instance)


def test_python_can_not_be_chosen_where_the_container_has_one(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(PreflightRefused) as refused:
        framework_image(FrameworkConfig(version="2.13", python="py311"), "us-east-1", GPU)
    assert str(refused.value) == snapshot


SMP_V2 = {
    "distribution": {"kind": "smp_v2", "hybrid_shard_degree": 8},
    "instance_type": "ml.p4d.24xlarge",
}


@pytest.mark.parametrize(
    ("version", "instance", "tag"),
    [
        ("2.0.1", "ml.p4d.24xlarge", "2.0.1-gpu-py310-cu118"),
        ("2.0.1", "ml.p5.48xlarge", "2.0.1-gpu-py310-cu121"),
        # as the SDK v2 chose it: golden_requests/smp_v2_image
        ("2.4.1", "ml.p4d.24xlarge", "2.4.1-gpu-py311-cu121"),
        ("2.5.1", "ml.p5.48xlarge", "2.5.1-gpu-py311-cu124"),
    ],
)
def test_smp_v2_gets_its_own_container(
    version: str, instance: str, tag: str, make_config: Any
) -> None:
    config = make_config(
        training={**SMP_V2, "instance_type": instance},
        image={"framework": {"version": version}},
        platform={"region": "eu-west-1"},
    )
    image = with_container(config, load_catalogue().get(instance))
    assert (
        image.base_image
        == f"658645717510.dkr.ecr.eu-west-1.amazonaws.com/smdistributed-modelparallel:{tag}"
    )
    assert (image.framework, image.uri) == (None, None)


@pytest.mark.parametrize(
    ("framework", "region", "message"),
    [
        # sagemaker-core has a URI for the first, 2.5.0 being a version of the library; there is no
        # such container.
        (
            {"version": "2.5.0"},
            "us-east-1",
            r"image\.framework\.version: .* 2\.5\.0, .* 2\.5\.1",
        ),
        ({"version": "2.13"}, "us-east-1", r"has PyTorch 2\.13"),
        (
            {"version": "2.4.1", "python": "py39"},
            "us-east-1",
            r"image\.framework: .* version: py39",
        ),
        (
            {"version": "2.4.1", "accelerator": "cpu"},
            "us-east-1",
            r"image\.framework\.accelerator: got 'cpu'",
        ),
        ({"version": "2.4.1"}, "cn-north-1", r"image\.framework: .* region: cn-north-1"),
    ],
)
def test_smp_container_that_is_not_there_is_refused(
    framework: dict[str, str], region: str, message: str, make_config: Any
) -> None:
    config = make_config(
        training=SMP_V2, image={"framework": framework}, platform={"region": region}
    )
    with pytest.raises(PreflightRefused, match=message):
        with_container(config, GPU)


def test_nothing_is_looked_up_where_nothing_is_asked(make_config: Any) -> None:
    plain = make_config(image={"base_image": "base:1"})
    ready = make_config(image={"uri": "x", "framework": {"version": "2.5"}})
    assert [with_container(config, GPU) for config in (plain, ready)] == [plain.image, ready.image]


def test_without_a_context_own_code_runs_in_the_container_as_it_is(make_config: Any) -> None:
    base = (
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
        "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"
    )
    config = make_config(
        image={"context": None, "base_image": base}, training={"source_dir": "code"}
    )
    assert config.runs_unmodified_container
    assert with_container(config, GPU) == ImageConfig(uri=base)
    built = make_config(image={"base_image": base}, training={"source_dir": "code"})
    assert (built.runs_unmodified_container, with_container(built, GPU).uri) == (False, None)


def test_container_that_runs_as_it_is_goes_by_its_digest(
    make_config: Any, platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Ecr:
        def batch_get_image(self, **call: Any) -> dict[str, Any]:
            asked.append(call)
            return {"images": [{"imageId": {"imageDigest": "sha256:" + "1" * 64}}], "failures": []}

    monkeypatch.setattr("nodesweep.tasks.image.bases.aws_client", lambda *_, **__: Ecr())
    base = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"
    assert (
        pin_container(Images(backend_of(platform), ImageConfig()), f"{base}:2.5-gpu-py311")
        == f"{base}@sha256:" + "1" * 64
    )
    assert asked == [
        {
            "registryId": "763104351884",
            "repositoryName": "pytorch-training",
            "imageIds": [{"imageTag": "2.5-gpu-py311"}],
        }
    ]
    assert (
        pin_container(Images(backend_of(platform), ImageConfig()), "somewhere.else/pytorch:1")
        == "somewhere.else/pytorch:1"
    )


def test_base_is_named_once() -> None:
    with pytest.raises(ValueError, match="base_image and framework"):
        ImageConfig(base_image="base:1", framework=FrameworkConfig(version="2.5"))
