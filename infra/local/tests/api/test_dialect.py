"""Responses to unmodeled calls and errors use the protocol of the client."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session
from botocore.parsers import create_parser
from moto.core.responses import BaseResponse

from infra.local.tests.platform_client import client, session

NOT_MODELLED: list[tuple[str, str, dict[str, Any], str, int]] = [
    (
        "iam",
        "generate_organizations_access_report",
        {"EntityPath": "o-1234567890/r-1234/ou-1234"},
        "InvalidAction",
        400,
    ),
    ("ec2", "describe_fpga_images", {}, "InvalidAction", 400),
    ("rds", "describe_db_major_engine_versions", {}, "InvalidAction", 400),
    ("route53", "list_traffic_policies", {}, "InvalidAction", 400),
    ("lambda", "list_code_signing_configs", {}, "UnknownOperationException", 404),
    ("ecr", "describe_pull_through_cache_rules", {}, "UnknownOperationException", 400),
    ("sagemaker", "list_hubs", {}, "UnknownOperationException", 400),
    ("cloudwatch", "describe_anomaly_detectors", {}, "UnknownOperationException", 400),
    # services that moto doesn't have
    ("cloudsearch", "describe_domains", {}, "InvalidAction", 400),
    ("devicefarm", "list_projects", {}, "UnknownOperationException", 400),
    ("signer", "list_signing_jobs", {}, "UnknownOperationException", 404),
]


def refused(call: Any, **arguments: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return dict(caught.value.response)


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "code", "status"),
    NOT_MODELLED,
    ids=[one[0] for one in NOT_MODELLED],
)
def test_operation_that_is_not_modelled(
    platform: SimpleNamespace,
    service: str,
    operation: str,
    arguments: dict[str, Any],
    code: str,
    status: int,
) -> None:
    answer = refused(getattr(client(platform.endpoint, service), operation), **arguments)
    assert answer["Error"]["Code"] == code
    message = answer["Error"]["Message"]
    if service in ("iam", "ec2", "ecr", "sagemaker"):
        assert message.endswith(
            client(platform.endpoint, service).meta.method_to_api_mapping[operation]
        )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == status
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"]
    assert "html" not in answer["ResponseMetadata"]["HTTPHeaders"]["content-type"]


UNHEARD_OF = [
    ("iam", {"Content-Type": "application/x-www-form-urlencoded"}, b"Action=Foo", "InvalidAction"),
    ("ec2", {"Content-Type": "application/x-www-form-urlencoded"}, b"Action=Foo", "InvalidAction"),
    (
        "sagemaker",
        {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "SageMaker.Foo"},
        b"{}",
        "UnknownOperationException",
    ),
]
"""(service, headers, body, code) of calls that are not in the model of the service."""


@pytest.mark.parametrize(
    ("service", "headers", "body", "code"), UNHEARD_OF, ids=[one[0] for one in UNHEARD_OF]
)
def test_operation_that_no_model_has(
    platform: SimpleNamespace, service: str, headers: dict[str, str], body: bytes, code: str
) -> None:
    """The caller is at fault, and clients would retry after status 500."""
    answer = send(platform, service, "POST", "/", headers, body)
    assert answer.status_code == 400
    assert code in answer.text


JSON = {"Content-Type": "application/x-amz-json-1.1"}
NO_XML = b"<Delete><Object>"
WRONG: list[tuple[str, str, str, dict[str, str], bytes, str]] = [
    ("s3", "GET", "/results?max-keys=abc", {}, b"", "InvalidArgument"),
    ("s3", "GET", "/results?list-type=2&max-keys=-1", {}, b"", "InvalidArgument"),
    ("s3", "GET", "/results?list-type=2&continuation-token=x", {}, b"", "InvalidArgument"),
    ("s3", "POST", "/results?delete", {}, NO_XML, "MalformedXML"),
    (
        "sagemaker",
        "POST",
        "/",
        {**JSON, "X-Amz-Target": "SageMaker.ListTrainingJobs"},
        b"[" * 20_000,
        "SerializationException",
    ),
    (
        "logs",
        "POST",
        "/",
        {**JSON, "X-Amz-Target": "Logs_20140328.GetQueryResults"},
        b'{"queryId": "absent"}',
        "ResourceNotFoundException",
    ),
    (
        "iam",
        "POST",
        "/",
        {"Content-Type": "application/x-www-form-urlencoded"},
        b"Action=SimulatePrincipalPolicy&Version=2010-05-08&ActionNames.member.1=s3:GetObject"
        b"&PolicySourceArn=arn:aws:iam::000000000000:role/nodesweep-training"
        b"&PolicyInputList.member.1=nojson",
        "MalformedPolicyDocument",
    ),
]
"""(service, method, path, headers, body, code) of invalid calls."""


@pytest.mark.parametrize(
    ("service", "method", "path", "headers", "body", "code"),
    WRONG,
    ids=[f"{one[0]} {one[2]}" for one in WRONG],
)
def test_what_the_caller_did_wrong_is_no_internal_error(
    platform: SimpleNamespace,
    service: str,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    code: str,
) -> None:
    answer = send(platform, service, method, path, headers, body)
    assert (answer.status_code, code in answer.text) == (400, True), answer.text


def test_list_of_parts_that_is_no_xml(platform: SimpleNamespace) -> None:
    place = {"Bucket": "results", "Key": "in-parts"}
    upload = platform.s3.create_multipart_upload(**place)["UploadId"]
    platform.s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"x")
    answer = send(platform, "s3", "POST", f"/results/in-parts?uploadId={upload}", body=NO_XML)
    assert (answer.status_code, "MalformedXML" in answer.text) == (400, True), answer.text


def test_s3s_own_words(platform: SimpleNamespace) -> None:
    """S3 has no list of actions, so an unknown operation is NotImplemented."""
    answer = send(platform, "s3", "PATCH", "/results")
    error = ElementTree.fromstring(answer.content)
    assert (answer.status_code, error.tag, error.findtext("Code")) == (
        501,
        "Error",
        "NotImplemented",
    )
    assert error.findtext("RequestId") == answer.headers["x-amzn-requestid"]


@pytest.mark.parametrize("content_type", ["application/json", "application/cbor"])
def test_s3s_errors_are_its_own_whatever_the_object_is(
    platform: SimpleNamespace, content_type: str
) -> None:
    """A conditional write of an existing object fails with status 412, which clients recognize."""
    platform.s3.create_bucket(Bucket="kept-objects")
    request = {
        "Bucket": "kept-objects",
        "Key": content_type,
        "ContentType": content_type,
        "Body": b"{}",
    }
    platform.s3.put_object(**request)
    with pytest.raises(ClientError) as raised:
        platform.s3.put_object(**request, IfNoneMatch="*")
    assert raised.value.response["Error"]["Code"] == "PreconditionFailed"


def test_cbor(platform: SimpleNamespace) -> None:
    """Clients that use AWS's newest protocol can only read errors in CBOR."""
    headers = {
        "smithy-protocol": "rpc-v2-cbor",
        "Content-Type": "application/cbor",
        "Accept": "application/cbor",
    }
    path = "/service/DeviceFarm_20150623/operation/ListProjects"
    answer = send(platform, "devicefarm", "POST", path, headers, b"\xa0")
    parsed = create_parser("smithy-rpc-v2-cbor").parse(
        {"status_code": answer.status_code, "headers": answer.headers, "body": answer.content}, None
    )
    assert parsed["Error"]["Code"] == "UnknownOperationException"
    assert parsed["Error"]["Message"].endswith("DeviceFarm_20150623.ListProjects")
    assert answer.headers["smithy-protocol"] == "rpc-v2-cbor"


FAILING = [
    ("iam", "list_roles", "InternalFailure"),
    ("ec2", "describe_vpcs", "InternalError"),
    ("s3", "list_buckets", "InternalError"),
    ("ecr", "describe_repositories", "InternalFailure"),
    ("lambda", "list_functions", "InternalFailure"),
    ("sagemaker", "list_models", "InternalFailure"),
]


@pytest.mark.parametrize(("service", "operation", "code"), FAILING, ids=[one[0] for one in FAILING])
def test_internal_error_is_the_services_and_logged(
    platform: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    service: str,
    operation: str,
    code: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken at /root/secret")

    called = client(platform.endpoint, service)
    monkeypatch.setattr(BaseResponse, "setup_class", fail)
    answer = refused(getattr(called, operation))
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, 500)
    identity = answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"]
    assert identity in answer["Error"]["Message"] and "secret" not in answer["Error"]["Message"]
    assert f"(request {identity})" in caplog.text and "broken at" in caplog.text


@pytest.mark.parametrize(
    "service", ["sagemaker", "s3", "sts", "ecr", "logs", "codebuild", "ec2", "iam"]
)
def test_every_answer_names_its_request(platform: SimpleNamespace, service: str) -> None:
    calls = {
        "sagemaker": "list_training_jobs",
        "s3": "list_buckets",
        "sts": "get_caller_identity",
        "ecr": "describe_repositories",
        "logs": "describe_log_groups",
        "codebuild": "list_projects",
        "ec2": "describe_vpcs",
        "iam": "list_roles",
    }
    first, second = (
        getattr(client(platform.endpoint, service), calls[service])()["ResponseMetadata"][
            "HTTPHeaders"
        ]
        for _ in "12"
    )
    assert first["x-amzn-requestid"] and first["x-amzn-requestid"] != second["x-amzn-requestid"]


def send(
    platform: SimpleNamespace,
    service: str,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
) -> Any:
    """Send a signed request that nodesweep's clients would not send."""
    request = AWSRequest(method, platform.endpoint + path, headers or {}, body)
    credentials = session(platform.endpoint, "us-east-1").get_credentials()
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    signer(credentials, service, "us-east-1").add_auth(request)
    return URLLib3Session().send(request.prepare())


def test_paths_without_a_service_of_that_name(platform: SimpleNamespace) -> None:
    """If the signing name is not the name of a model, the service uses paths and JSON, like most
    services.
    """
    answer = send(platform, "no-such-service", "GET", "/things")
    assert answer.status_code == 404
    assert (
        answer.headers["x-amzn-errortype"]
        == json.loads(answer.content)["__type"]
        == "UnknownOperationException"
    )
