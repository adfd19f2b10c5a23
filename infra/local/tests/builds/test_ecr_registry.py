"""ECR responses with a registry, and the effect of pushes on them."""

from __future__ import annotations

import pytest

from sagemaker_emulator.api.access import Gate, access_keys
from sagemaker_emulator.api.front import Front
from sagemaker_emulator.api.in_process import OWN_KEY_ID, client_factory
from sagemaker_emulator.api.moto_backend import moto_application, reset_state
from sagemaker_emulator.builds.ecr_registry import EcrRegistry

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


@pytest.fixture
def registry():
    return EcrRegistry("127.0.0.1:5055")


@pytest.fixture
def clients(registry, tmp_path):
    reset_state()
    gate = Gate(access_keys(tmp_path), OWN_KEY_ID)
    made = client_factory(Front(registry.wrap(moto_application("000000000000")), dict, gate))
    registry.connect(made)
    return made


@pytest.fixture
def ecr(clients):
    return clients("ecr", "us-east-1")


def test_repositories_are_at_the_registry(ecr):
    made = ecr.create_repository(repositoryName="team/images")["repository"]
    found = ecr.describe_repositories(repositoryNames=["team/images"])["repositories"][0]
    assert made["repositoryUri"] == found["repositoryUri"] == "127.0.0.1:5055/team/images"
    assert found["registryId"] == "000000000000"


def test_login_is_at_the_registry(ecr):
    assert (
        ecr.get_authorization_token()["authorizationData"][0]["proxyEndpoint"]
        == "http://127.0.0.1:5055"
    )


def test_pushed_image_is_in_ecr_with_its_digest(registry, ecr):
    registry.pushed("images", "one", A)
    registry.pushed("images", "one", A)  # pushing it again is not an error
    details = ecr.describe_images(repositoryName="images", imageIds=[{"imageTag": "one"}])[
        "imageDetails"
    ]
    assert details[0]["imageDigest"] == A
    assert ecr.describe_repositories()["repositories"][0]["imageTagMutability"] == "IMMUTABLE"


def test_pushed_image_is_in_the_region_of_its_repository(registry, clients):
    clients("ecr", "eu-west-1").create_repository(repositoryName="images")
    registry.pushed("images", "one", A)
    assert (
        clients("ecr", "eu-west-1").list_images(repositoryName="images")["imageIds"][0]["imageTag"]
        == "one"
    )
    assert clients("ecr", "us-east-1").describe_repositories()["repositories"] == []


@pytest.mark.parametrize(("mutability", "is_refused"), [("IMMUTABLE", True), ("MUTABLE", False)])
def test_only_an_immutable_tag_is_refused_another_digest(registry, ecr, mutability, is_refused):
    ecr.create_repository(repositoryName="images", imageTagMutability=mutability)
    assert registry.refusal("images", "one", A) is None
    registry.pushed("images", "one", A)
    assert registry.refusal("images", "one", A) is None
    assert (registry.refusal("images", "one", B) is not None) == is_refused


def test_unknown_repository_refuses_nothing(registry, ecr):
    assert registry.refusal("images", "one", A) is None
