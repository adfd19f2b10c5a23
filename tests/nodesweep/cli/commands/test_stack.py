from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands.stack import read_outputs, stack_client
from nodesweep.configs.load import ConfigError
from nodesweep.configs.written.from_stack import LocalEndpoint

TEMPLATE = json.dumps(
    {"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}, "Outputs": {"BucketName": {"Value": "mine"}}}
)


def test_outputs_by_their_keys(aws: Callable[[str], Any]) -> None:
    cloudformation = aws("cloudformation")
    cloudformation.create_stack(StackName="s", TemplateBody=TEMPLATE)
    assert read_outputs(cloudformation, "s") == {"BucketName": "mine"}


def test_unknown_stack_is_a_message(aws: Callable[[str], Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as refused:
        read_outputs(aws("cloudformation"), "nowhere")
    assert str(refused.value) == snapshot


class Answering:
    """A client whose only call gets this response."""

    def __init__(self, answer: dict[str, Any] | ClientError) -> None:
        self.meta = type("Meta", (), {"region_name": "eu-west-1"})
        self._answer = answer

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        if isinstance(self._answer, ClientError):
            raise self._answer
        return self._answer


@pytest.mark.parametrize("status", ["CREATE_IN_PROGRESS", "ROLLBACK_COMPLETE", "DELETE_FAILED"])
def test_stack_that_is_not_deployed_is_refused(status: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as refused:
        read_outputs(Answering({"Stacks": [{"StackStatus": status}]}), "s")
    assert str(refused.value) == snapshot


def test_stack_without_outputs_has_none() -> None:
    assert read_outputs(Answering({"Stacks": [{"StackStatus": "UPDATE_COMPLETE"}]}), "s") == {}


def test_other_errors_keep_their_name() -> None:
    error = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "DescribeStacks")
    with pytest.raises(ClientError, match="AccessDenied"):
        read_outputs(Answering(error), "s")


def test_region_is_that_of_the_set_up_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert stack_client(None, None).meta.region_name == "eu-central-1"
    assert stack_client("us-west-2", None).meta.region_name == "us-west-2"


@pytest.mark.parametrize("local", [None, LocalEndpoint("http://127.0.0.1:1", "state")])
def test_no_region_at_all_is_a_message(
    monkeypatch: pytest.MonkeyPatch, local: LocalEndpoint | None, snapshot: SnapshotAssertion
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigError) as refused:
        stack_client(None, local)
    assert str(refused.value) == snapshot
