"""Access to the platform by other users of this machine and by training jobs."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import stat
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from moto.sts.models import sts_backends

from infra.local.tests.platform_client import client, job_request
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.server.contract import STATUS_PATH
from sagemaker_emulator.state.files import UnsafeFile


def client_with(
    platform: SimpleNamespace, service: str, key_id: str, secret: str = "guessed", **config: Any
) -> Any:
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=platform.endpoint,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def code_of(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return str(refused.value.response["Error"]["Code"])


CALLS = [
    ("sagemaker", "list_training_jobs", {}, "UnrecognizedClientException"),
    (
        "sagemaker",
        "create_training_job",
        job_request("of-a-stranger"),
        "UnrecognizedClientException",
    ),
    ("codebuild", "start_build", {"projectName": "nodesweep-image"}, "UnrecognizedClientException"),
    ("ecr", "describe_repositories", {}, "UnrecognizedClientException"),
    ("logs", "describe_log_groups", {}, "UnrecognizedClientException"),
    ("s3", "list_buckets", {}, "InvalidAccessKeyId"),
    (
        "s3",
        "put_object",
        {"Bucket": "results", "Key": "planted", "Body": b"x"},
        "InvalidAccessKeyId",
    ),
    ("sts", "get_caller_identity", {}, "InvalidClientTokenId"),
    ("iam", "list_roles", {}, "InvalidClientTokenId"),
    ("cloudformation", "list_stacks", {}, "InvalidClientTokenId"),
    ("ec2", "describe_instances", {}, "AuthFailure"),
]


@pytest.mark.parametrize(
    ("service", "call", "arguments", "code"), CALLS, ids=[f"{one[0]}-{one[1]}" for one in CALLS]
)
def test_another_user_of_the_machine_is_refused_in_awss_words(
    platform: SimpleNamespace, service: str, call: str, arguments: dict[str, Any], code: str
) -> None:
    for key_id in ("placeholder", "nodesweep-platform", "AKIAIOSFODNN7EXAMPLE"):
        assert code_of(getattr(client_with(platform, service, key_id), call), **arguments) == code


def test_who_knows_the_id_and_not_the_secret_is_refused(platform: SimpleNamespace) -> None:
    """Presigned URLs, which users share, contain the id."""
    key_id = access_keys(platform.state_dir).user.id
    assert code_of(client_with(platform, "s3", key_id).list_buckets) == "SignatureDoesNotMatch"
    assert (
        code_of(client_with(platform, "sagemaker", key_id).list_training_jobs)
        == "InvalidSignatureException"
    )
    assert (
        code_of(client_with(platform, "sts", key_id).get_caller_identity) == "SignatureDoesNotMatch"
    )


def test_a_signature_is_for_one_body(platform: SimpleNamespace) -> None:
    def swap(request: Any, **_: Any) -> None:
        request.body = b'{"NameContains": "else"}'
        request.headers["Content-Length"] = str(len(request.body))

    sagemaker = client(platform.endpoint, "sagemaker")
    sagemaker.meta.events.register("before-send.*.*", swap)
    assert code_of(sagemaker.list_training_jobs) == "InvalidSignatureException"


def test_nobody_is_refused_too(platform: SimpleNamespace) -> None:
    unsigned = {"signature_version": UNSIGNED}
    assert code_of(client_with(platform, "s3", "x", **unsigned).list_buckets) == "AccessDenied"
    jobs = client_with(platform, "sagemaker", "x", **unsigned).list_training_jobs
    assert code_of(jobs) == "MissingAuthenticationTokenException"
    for path in ("/moto-api/reset", "/", "/results?list-type=2"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(
                urllib.request.Request(platform.endpoint + path, data=b"", method="POST"),
                timeout=300,
            )


def test_a_presigned_url_opens_one_object_until_it_expires(
    platform: SimpleNamespace,
) -> None:
    key = access_keys(platform.state_dir).user
    s3 = client_with(platform, "s3", key.id, key.secret, signature_version="s3v4")
    place = {"Bucket": "results", "Key": "a b/ü.txt"}
    platform.s3.put_object(**place, Body=b"shared")
    url = s3.generate_presigned_url("get_object", place, ExpiresIn=600)
    with urllib.request.urlopen(url, timeout=300) as answer:
        assert answer.read() == b"shared"
    stranger = client_with(platform, "s3", "LOCALUSER0", signature_version="s3v4")
    later = re.sub("(Expires=)[0-9]+", "\\g<1>604800", url)
    expired = s3.generate_presigned_url("get_object", place, ExpiresIn=-1)
    for refused in (
        stranger.generate_presigned_url("get_object", place),
        url.replace("a%20b", "a%20c"),
        later,
        expired,
    ):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(refused, timeout=300)


def send(
    url: str, headers: dict[str, str], body: bytes = b"", method: str = "GET"
) -> tuple[int, str]:
    """Send exactly this request, and return the status and the text of the response."""
    request = urllib.request.Request(url, data=body or None, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


JSON = "application/x-amz-json-1.1"
CREATE, BUILD = json.dumps(job_request("by-link")).encode(), b'{"projectName": "nodesweep-image"}'


@pytest.mark.parametrize("owner", ["user", "node"])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"X-Amz-Target": "SageMaker.CreateTrainingJob", "Content-Type": JSON}, CREATE),
        ({"X-Amz-Target": "CodeBuild_20161006.StartBuild", "Content-Type": JSON}, BUILD),
        ({"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Type": JSON}, b""),
        ({"X-Amz-Target": "Logs_20140328.DescribeLogGroups", "Content-Type": JSON}, b""),
        (
            {"Content-Type": "application/x-www-form-urlencoded"},
            b"Action=CreateUser&UserName=n&Version=2010-05-08",
        ),
        ({"Transfer-Encoding": "chunked"}, b""),
    ],
)
def test_a_link_opens_its_object_and_calls_nothing(
    platform: SimpleNamespace, owner: str, headers: dict[str, str], body: bytes
) -> None:
    """The signature of a link covers neither these headers nor a body."""
    key = getattr(access_keys(platform.state_dir), owner)
    s3 = client_with(platform, "s3", key.id, key.secret, signature_version="s3v4")
    place = {"Bucket": "results", "Key": "linked"}
    platform.s3.put_object(**place, Body=b"shared")
    url = s3.generate_presigned_url("get_object", place)
    if "Transfer-Encoding" in headers:
        status, text = send_chunked(url)
    else:
        status, text = send(url, headers, body)
    assert status in (400, 403) and "AccessDenied" in text, text
    assert platform.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
    assert send(url, {}) == (200, "shared")


@pytest.mark.parametrize("is_virtual", [False, True])
def test_signature_version_2_opens_nothing(platform: SimpleNamespace, is_virtual: bool) -> None:
    """Signature version 2 does not sign the Host header, so a link would also be valid for the same
    key in other buckets.
    """
    key = access_keys(platform.state_dir).user
    s3 = client_with(platform, "s3", key.id, key.secret, signature_version="s3")
    platform.s3.put_object(Bucket="results", Key="linked", Body=b"shared")
    url = s3.generate_presigned_url("get_object", {"Bucket": "results", "Key": "linked"})
    assert "AWSAccessKeyId" in url
    if is_virtual:
        status, text = send(url.replace("/results", ""), {"Host": "results.localhost"})
    else:
        status, text = send(url, {})
    assert status == 403 and "InvalidRequest" in text and "s3v4" in text, text
    assert code_of(s3.list_buckets) == "InvalidRequest"


@pytest.mark.parametrize("service", ["s3", "sagemaker"])
@pytest.mark.parametrize(
    ("minutes", "passes"), [(-14, True), (14, True), (-16, False), (16, False), (-4_000_000, False)]
)
def test_a_signature_holds_for_a_quarter_of_an_hour(
    platform: SimpleNamespace,
    service: str,
    minutes: int,
    passes: bool,
) -> None:
    """A recorded request must not be accepted a day later."""
    date = (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ")
    body = b"" if service == "s3" else b"{}"
    headers = {"Host": urlsplit(platform.endpoint).netloc, "X-Amz-Date": date}
    if service == "s3":
        headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
    else:
        headers |= {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Type": JSON}
    request = AWSRequest("POST" if body else "GET", f"{platform.endpoint}/", headers, body)
    request.context["timestamp"] = date
    key = access_keys(platform.state_dir).user
    signer_class = S3SigV4Auth if service == "s3" else SigV4Auth
    signer = signer_class(Credentials(key.id, key.secret), service, "us-east-1")
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)},"
        f" SignedHeaders={signer.signed_headers(signer.headers_to_sign(request))},"
        f" Signature={signature}"
    )
    status, text = send(request.url, headers, body, request.method)
    assert (status == 200) == passes, text
    assert passes or "RequestTimeTooSkewed" in text or "Signature expired" in text


@pytest.mark.parametrize("date", ["", "yesterday", "20190101"])
def test_a_signature_without_a_date_is_none(platform: SimpleNamespace, date: str) -> None:
    key = access_keys(platform.state_dir).user
    request = AWSRequest("GET", f"{platform.endpoint}/", {})
    S3SigV4Auth(Credentials(key.id, key.secret), "s3", "us-east-1").add_auth(request)
    status, text = send(request.url, {**dict(request.headers), "X-Amz-Date": date})
    assert status == 403 and "AccessDenied" in text


def test_a_signature_that_is_no_ascii_is_a_wrong_one(platform: SimpleNamespace) -> None:
    key = access_keys(platform.state_dir).user
    s3 = client_with(platform, "s3", key.id, key.secret, signature_version="s3v4")
    url = s3.generate_presigned_url("get_object", {"Bucket": "results", "Key": "linked"})
    altered = re.sub("(X-Amz-Signature=).*", "\\g<1>%C3%BC", url)
    assert send(altered, {})[0] == 403


@pytest.mark.parametrize("left_out", ["host", "x-amz-content-sha256"])
def test_a_signature_covers_the_host_and_the_bodys_hash(
    platform: SimpleNamespace, left_out: str
) -> None:
    key = access_keys(platform.state_dir).user

    class Careless(S3SigV4Auth):
        def headers_to_sign(self, request: Any) -> Any:
            headers = super().headers_to_sign(request)
            del headers[left_out]
            return headers

    request = AWSRequest("GET", f"{platform.endpoint}/", {})
    Careless(Credentials(key.id, key.secret), "s3", "us-east-1").add_auth(request)
    status, text = send(request.url, dict(request.headers))
    assert status == 403 and "SignatureDoesNotMatch" in text


def send_chunked(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=300)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", body=iter([b"x"]),
                           encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_link_reads_and_writes_nothing(platform: SimpleNamespace) -> None:
    key = access_keys(platform.state_dir).user
    s3 = client_with(platform, "s3", key.id, key.secret, signature_version="s3v4")
    url = s3.generate_presigned_url("delete_object", {"Bucket": "results", "Key": "linked"})
    status, text = send(url, {}, method="DELETE")
    assert status == 403 and "AccessDenied" in text


def test_a_link_of_another_service_opens_nothing(platform: SimpleNamespace) -> None:
    key = access_keys(platform.state_dir).user
    sts = client_with(platform, "sts", key.id, key.secret)
    _, text = send(sts.generate_presigned_url("get_caller_identity", HttpMethod="GET"), {})
    assert "AccessDenied" in text and "presigned URL can only read from S3" in text


def test_a_link_to_a_cbor_path_calls_nothing(platform: SimpleNamespace) -> None:
    key = access_keys(platform.state_dir).user
    s3 = client_with(platform, "s3", key.id, key.secret, signature_version="s3v4")
    place = {"Bucket": "service", "Key": "SageMaker/operation/ListTrainingJobs"}
    assert "AccessDenied" in send(s3.generate_presigned_url("get_object", place), {})[1]


def test_a_call_signed_for_another_service_is_not_taken(platform: SimpleNamespace) -> None:
    """A signature for S3 does not have to cover the target header, so the service in the scope must
    match.
    """
    key = access_keys(platform.state_dir).user
    sagemaker = client_with(platform, "sagemaker", key.id, key.secret)
    sagemaker.meta.events.register("choose-signer.*.*", lambda signing_name, context, **_: "v4")
    sagemaker._request_signer._signing_name = "s3"
    with pytest.raises((ClientError, ResponseParserError)):
        sagemaker.create_training_job(**job_request("signed-for-s3"))
    assert platform.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []


def test_the_status_that_anybody_may_ask_for_tells_nothing_of_the_contents(
    platform: SimpleNamespace,
) -> None:
    platform.s3.create_bucket(Bucket="known-to-none")
    status, text = send(platform.endpoint + STATUS_PATH, {})
    keys = access_keys(platform.state_dir)
    assert status == 200 and json.loads(text)["running"] is True
    hidden = ("known-to-none", keys.user.id, keys.user.secret, keys.node.secret)
    assert not any(secret in text for secret in hidden)
    assert send(platform.endpoint + STATUS_PATH, {}, b"{}", "POST") == (status, text)
    platform.s3.delete_bucket(Bucket="known-to-none")


def test_a_jobs_key_reaches_s3_logs_and_metrics(platform: SimpleNamespace) -> None:
    node = access_keys(platform.state_dir).node
    s3 = client_with(platform, "s3", node.id, node.secret)
    s3.put_object(Bucket="results", Key="of-a-node", Body=b"x" * 70_000)
    assert s3.get_object(Bucket="results", Key="of-a-node")["Body"].read() == b"x" * 70_000
    logs = client_with(platform, "logs", node.id, node.secret)
    logs.create_log_group(logGroupName="of-a-node")
    metric = {"MetricName": "loss", "Value": 1.0}
    client_with(platform, "cloudwatch", node.id, node.secret).put_metric_data(
        Namespace="n", MetricData=[metric]
    )


def test_a_jobs_key_reads_and_deletes_what_other_jobs_wrote(platform: SimpleNamespace) -> None:
    """All jobs share a key (docs/security.md)."""
    platform.s3.create_bucket(Bucket="of-another")
    platform.s3.put_object(Bucket="of-another", Key="sweep.json", Body=b"theirs")
    platform.logs.create_log_group(logGroupName="of-another")
    node = access_keys(platform.state_dir).node
    s3 = client_with(platform, "s3", node.id, node.secret)
    assert s3.get_object(Bucket="of-another", Key="sweep.json")["Body"].read() == b"theirs"
    s3.delete_object(Bucket="of-another", Key="sweep.json")
    s3.delete_bucket(Bucket="of-another")
    logs = client_with(platform, "logs", node.id, node.secret)
    logs.delete_log_group(logGroupName="of-another")
    assert "of-another" not in str(platform.s3.list_buckets()["Buckets"])


@pytest.mark.parametrize(
    ("service", "call", "arguments", "code"),
    [
        ("codebuild", "start_build", {"projectName": "nodesweep-image"}, "AccessDeniedException"),
        ("sagemaker", "create_training_job", job_request("of-a-node"), "AccessDeniedException"),
        ("ecr", "describe_repositories", {}, "AccessDeniedException"),
        ("iam", "create_user", {"UserName": "n"}, "AccessDenied"),
        ("cloudformation", "list_stacks", {}, "AccessDenied"),
    ],
)
def test_and_nothing_else(
    platform: SimpleNamespace, service: str, call: str, arguments: dict[str, Any], code: str
) -> None:
    node = access_keys(platform.state_dir).node
    assert (
        code_of(getattr(client_with(platform, service, node.id, node.secret), call), **arguments)
        == code
    )


def test_not_by_signing_for_another_service_than_is_called(platform: SimpleNamespace) -> None:
    """The target header and the signed service both determine which service gets a request."""
    node = access_keys(platform.state_dir).node

    codebuild = client_with(platform, "codebuild", node.id, node.secret)
    codebuild.meta.events.register("choose-signer.*.*", lambda signing_name, context, **_: "v4")
    codebuild._request_signer._signing_name = "logs"
    assert code_of(codebuild.start_build, projectName="nodesweep-image") == "AccessDeniedException"


@pytest.mark.parametrize("service", ["iam", "ecr", "sagemaker", "cloudformation"])
@pytest.mark.parametrize(
    "form",
    [
        "AWS4-HMAC-SHA256 x/20200101/us-east-1/{service}/aws4_request, {rest}",
        "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/{service}/aws4_request, {rest}",
        "AWS4-HMAC-SHA256 {rest}, Credential=x/20200101/us-east-1/{service}/aws4_request",
        "x {rest}",
    ],
)
def test_not_by_a_second_scope_in_the_header(
    platform: SimpleNamespace, service: str, form: str
) -> None:
    """The gate and moto must read the same service from the header."""
    node = access_keys(platform.state_dir).node
    url = f"{platform.endpoint}/"
    request = AWSRequest("GET", url, {"Content-Type": "application/x-www-form-urlencoded"})
    S3SigV4Auth(Credentials(node.id, node.secret), "s3", "us-east-1").add_auth(request)
    plain = dict(request.headers)
    assert "ListAllMyBucketsResult" in send(url, plain)[1]
    rest = plain["Authorization"].removeprefix("AWS4-HMAC-SHA256 ")
    status, text = send(url, {**plain, "Authorization": form.format(service=service, rest=rest)})
    assert status == 403 and "MissingAuthenticationToken" in text, text


def assume(platform: SimpleNamespace) -> dict[str, Any]:
    role = "arn:aws:iam::000000000000:role/nodesweep-pipeline"
    answer = client(platform.endpoint, "sts").assume_role(
        RoleArn=role, RoleSessionName="sweep", DurationSeconds=900
    )
    return answer["Credentials"]


def as_role(platform: SimpleNamespace, service: str, given: dict[str, Any], **config: Any) -> Any:
    return boto3.client(
        service, region_name="us-east-1", endpoint_url=platform.endpoint,
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"], aws_session_token=given.get("SessionToken"),
        config=Config(retries={"total_max_attempts": 1}, **config),
    )  # fmt: skip


def test_an_assumed_roles_credentials_are_taken_as_on_aws(platform: SimpleNamespace) -> None:
    """boto3 assumes the role if a profile contains role_arn (docs/aws.md)."""
    given = assume(platform)
    assert as_role(platform, "sagemaker", given).list_training_jobs()["TrainingJobSummaries"] == []
    assert (
        "assumed-role/nodesweep-pipeline/sweep"
        in as_role(platform, "sts", given).get_caller_identity()["Arn"]
    )
    for altered in ({**given, "SessionToken": None}, {**given, "SessionToken": "guessed"}):
        assert (
            code_of(as_role(platform, "sagemaker", altered).list_training_jobs)
            == "UnrecognizedClientException"
        )
    altered = {**given, "SecretAccessKey": "guessed"}
    assert code_of(as_role(platform, "s3", altered).list_buckets) == "SignatureDoesNotMatch"


def test_an_assumed_role_can_share_an_object(platform: SimpleNamespace) -> None:
    s3 = as_role(platform, "s3", assume(platform), signature_version="s3v4")
    platform.s3.put_object(Bucket="results", Key="shared", Body=b"by a role")
    url = s3.generate_presigned_url("get_object", {"Bucket": "results", "Key": "shared"})
    assert send(url, {}) == (200, "by a role")
    assert send(re.sub("(?i)security-token=[^&]{4}", "security-token=AAAA", url), {})[0] == 403


def test_an_assumed_roles_credentials_expire(platform: SimpleNamespace) -> None:
    given = assume(platform)
    [role] = [
        one
        for one in sts_backends["000000000000"]["aws"].assumed_roles
        if one.access_key_id == given["AccessKeyId"]
    ]
    role.expiration -= timedelta(seconds=901)
    assert (
        code_of(as_role(platform, "sagemaker", given).list_training_jobs) == "ExpiredTokenException"
    )
    assert code_of(as_role(platform, "s3", given).list_buckets) == "ExpiredToken"
    assert code_of(as_role(platform, "sts", given).get_caller_identity) == "ExpiredToken"


def test_a_users_key_is_taken_until_it_is_withdrawn(platform: SimpleNamespace) -> None:
    iam = client(platform.endpoint, "iam")
    iam.create_user(UserName="engineer")
    given = iam.create_access_key(UserName="engineer")["AccessKey"]
    assert as_role(platform, "sagemaker", given).list_training_jobs()["TrainingJobSummaries"] == []
    iam.update_access_key(UserName="engineer", AccessKeyId=given["AccessKeyId"], Status="Inactive")
    assert (
        code_of(as_role(platform, "sagemaker", given).list_training_jobs)
        == "UnrecognizedClientException"
    )


def test_keys_are_their_owners_alone_and_stay(platform: SimpleNamespace) -> None:
    file = platform.state_dir / "aws-credentials"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = access_keys(platform.state_dir)
    assert keys == access_keys(platform.state_dir) and keys.user != keys.node
    assert len(keys.user.id) >= 40 and len(keys.user.secret) >= 40


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o620])
def test_keys_that_others_may_reach_are_not_used(tmp_path: Path, mode: int) -> None:
    access_keys(tmp_path)
    file = tmp_path / "aws-credentials"
    file.chmod(mode)
    with pytest.raises(UnsafeFile, match=rf"mode is {mode:o}"):
        access_keys(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_keys_of_another_user_are_not_used(tmp_path: Path) -> None:
    access_keys(tmp_path)
    os.chown(tmp_path / "aws-credentials", 12345, 12345)
    with pytest.raises(UnsafeFile, match="user 12345"):
        access_keys(tmp_path)


def test_an_unmodified_client_takes_the_file(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(platform.state_dir / "aws-credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    found = (
        boto3.Session()
        .client("s3", region_name="us-east-1", endpoint_url=platform.endpoint)
        .list_buckets()
    )
    assert [bucket["Name"] for bucket in found["Buckets"]] == ["results"]


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("", "/v20180820/configuration/publicAccessBlock"),
        ("", "/v20180820/accesspoint"),
        ("s3-control.", "/v20180820/accesspoint"),
        ("v20180820.", "/accesspoint"),
    ],
)
def test_a_jobs_key_reaches_no_account_settings_of_s3(
    platform: SimpleNamespace, host: str, path: str
) -> None:
    """S3 Control is signed like S3, and moto tells them apart by path or host."""
    keys = access_keys(platform.state_dir)
    address = platform.endpoint.replace("127.0.0.1", f"{host}localhost") + path
    statuses = []
    for key in (keys.node, keys.user):
        request = AWSRequest("GET", address, {"x-amz-account-id": "000000000000"})
        S3SigV4Auth(Credentials(key.id, key.secret), "s3", "us-east-1").add_auth(request)
        local = platform.endpoint + path  # whatever the name resolves to
        headers = {**dict(request.headers.items()), "Host": address.split("/")[2]}
        statuses.append(send(local, headers)[0])
    assert statuses[0] == 403 and statuses[1] != 403, "the user's key does"
