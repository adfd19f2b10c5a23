"""docs/local-platform-operations.md is generated from the code, and describes a running
platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.model import ListShape, MapShape, Shape, StructureShape

from infra.local.tests.platform_client import client
from sagemaker_emulator.api.validation import service_model
from sagemaker_emulator.operations import (
    SERVICES,
    Operations,
    Service,
    operations,
    operations_document,
)

ASKED = ("sagemaker", "codebuild", "s3", "ecr", "iam", "sts", "logs")
"""The services that are tested on a running platform."""
MOST = 4  # one of each kind and service
REFUSAL = "The local platform does not model "


def test_page_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "local-platform-operations.md"
    assert page.read_text(encoding="utf-8") == operations_document()


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_every_operation_is_of_one_kind(service: Service) -> None:
    found = operations(service)
    kinds = [*found.own, *found.moto, *found.refused, *found.not_modelled]
    names = service_model(service.name).operation_names
    assert sorted(kinds) == sorted(name for name in names if name.startswith(service.only))
    assert set(found.shared) <= set(found.own)
    assert set(found.added) <= {*found.moto, *found.shared}


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_botocore_calls_it_by_no_protocol_that_is_not_modelled(service: Service) -> None:
    """rpc-v2-cbor isn't modelled, but botocore prefers a different protocol if there is one."""
    assert service_model(service.name).resolved_protocol != "smithy-rpc-v2-cbor"


def test_a_method_that_only_says_that_it_is_missing_is_none() -> None:
    assert "GetDownloadUrlForLayer" in kind("ecr").not_modelled
    assert "BatchGetImage" in kind("ecr").moto
    assert kind("pricing").moto == []


def kind(name: str) -> Operations:
    return operations(next(service for service in SERVICES if service.name == name))


def sample(names: list[str]) -> list[str]:
    """Return a few operations from every part of the list."""
    return names[:: max(1, len(names) // MOST)][:MOST]


def value(shape: Shape) -> Any:
    """Return a value with the type of the shape that does not name an existing resource."""
    if isinstance(shape, StructureShape):
        return {name: value(shape.members[name]) for name in shape.required_members}
    if isinstance(shape, ListShape):
        return [value(shape.member)]
    if isinstance(shape, MapShape):
        return {}
    plain = {"boolean": False, "timestamp": 0, "blob": b"", "string": "absent-name"}
    return plain.get(shape.type_name, 1)


def cases() -> Iterator[tuple[str, str, str]]:
    for name in ASKED:
        found = kind(name)
        for what in ("own", "refused", "moto", "not_modelled"):
            for operation in sample(list(getattr(found, what))):
                yield name, what, operation


@pytest.fixture(scope="module")
def clients(platform: SimpleNamespace) -> dict[str, Any]:
    """Clients that also send requests that botocore would refuse."""
    keys = client(platform.endpoint, "sts")._get_credentials()
    session = botocore.session.get_session()
    session.set_credentials(keys.access_key, keys.secret_key)
    config = Config(
        parameter_validation=False, inject_host_prefix=False, retries={"total_max_attempts": 1}
    )
    return {
        name: session.create_client(
            name, "us-east-1", endpoint_url=platform.endpoint, config=config
        )
        for name in ASKED
    }


def test_what_a_running_platform_does(clients: dict[str, Any]) -> None:
    """The resources in the requests do not exist, so even modelled calls can fail.

    The test has no parameters, since all workers would load the models to collect the tests.
    """
    wrong = []
    for name, what, operation in cases():
        shape = service_model(name).operation_model(operation).input_shape
        arguments = value(shape) if shape else {}
        if "Bucket" in arguments:
            arguments["Bucket"] = "absent-bucket"
        message = ""
        try:
            clients[name]._make_api_call(operation, arguments)
        except ClientError as error:
            message = error.response["Error"]["Message"]
        if message.startswith(REFUSAL) != (what in ("refused", "not_modelled")):
            wrong.append((name, what, operation, message))
    assert wrong == []
