"""moto's control API and instance metadata cannot be reached by any form of address."""

from __future__ import annotations

import http.client
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from infra.local.tests.platform_client import client
from sagemaker_emulator.api.access import access_keys

ROUTES = [
    ("GET", "moto-api", "data.json"),
    ("GET", "moto-api", ""),
    ("POST", "moto-api", "reset"),
    ("POST", "moto-api", "reset-auth"),
    ("GET", "moto-api", "seed?a=42"),
    ("POST", "moto-api", "recorder/start-recording"),
    ("GET", "moto-api", "recorder/download-recording"),
    ("POST", "moto-api", "recorder/upload-recording"),
    ("POST", "moto-api", "state-manager/set-transition"),
    ("GET", "moto-api", "config"),
    ("GET", "latest", "meta-data/iam/security-credentials/nodesweep-training"),
    ("GET", "latest", "api/token"),
    ("GET", "v20180820", "accesspoint"),
    ("GET", "v20180820", "configuration/publicAccessBlock"),
    ("GET", "results", "kept"),
    ("GET", "results", ""),
    ("PUT", "results", "planted"),
    ("DELETE", "results", "planted"),
]
FORMS = ["path", "virtual host", "encoded", "doubled slashes", "absolute", "absolute virtual host"]


def addressed(form: str, port: int, bucket: str, rest: str) -> tuple[str, str]:
    """Return the Host header and the request target for a form of address."""
    encoded = "".join(f"%{ord(character):02x}" for character in bucket)
    local, virtual = f"127.0.0.1:{port}", f"{bucket}.localhost:{port}"
    path, question, query = rest.partition("?")
    target = f"/{bucket}/{rest}"
    return {
        "path": (local, target),
        "virtual host": (virtual, f"/{rest}"),
        "encoded": (local, f"/{encoded}/{quote(path)}{question}{query}"),
        "doubled slashes": (local, f"//{bucket}/{rest}"),
        "absolute": (local, f"http://{local}{target}"),
        "absolute virtual host": (virtual, f"http://{virtual}/{rest}"),
    }[form]  # fmt: skip


def status_of(
    platform: SimpleNamespace, key: str, method: str, host: str, target: str, service: str = "s3"
) -> tuple[int, bytes]:
    """Send exactly this request, signed with the key, and return the status and the body."""
    parts = urlsplit(target) if target.startswith("http") else None
    uri = target if parts is None else target.removeprefix(f"http://{parts.netloc}")
    uri = "/" + uri.lstrip("/")  # signed as the HTTP server reads it
    pair = getattr(access_keys(platform.state_dir), key)
    request = AWSRequest(method, f"http://{host}{uri}", {"x-amz-account-id": "000000000000"})
    signer = (S3SigV4Auth if service == "s3" else SigV4Auth)(
        Credentials(pair.id, pair.secret), service, "us-east-1"
    )
    signer.add_auth(request)
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(platform.endpoint).port, 30)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in {**dict(request.headers.items()), "Host": host}.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def secret(platform: SimpleNamespace) -> bytes:
    """Put an object, and return the secret key of a session, both of which moto's API can reach."""
    platform.s3.put_object(Bucket="results", Key="kept", Body=b"kept")
    issued = client(platform.endpoint, "sts").assume_role(
        RoleArn="arn:aws:iam::000000000000:role/nodesweep-pipeline", RoleSessionName="sweep"
    )
    return bytes(issued["Credentials"]["SecretAccessKey"].encode())


@pytest.mark.parametrize("key", ["node", "user"])
@pytest.mark.parametrize(("method", "bucket", "rest"), ROUTES)
def test_every_form_of_an_address_is_answered_alike(
    platform: SimpleNamespace, secret: bytes, key: str, method: str, bucket: str, rest: str
) -> None:
    port = urlsplit(platform.endpoint).port
    assert port is not None
    statuses = {}
    for form in FORMS:
        status, body = status_of(platform, key, method, *addressed(form, port, bucket, rest))
        statuses[form] = status
        assert secret not in body
        assert b"SecretAccessKey" not in body and b"nodesweep.request_id" not in body
    assert platform.s3.get_object(Bucket="results", Key="kept")["Body"].read() == b"kept"
    assert len(set(statuses.values())) == 1, statuses
    status = statuses["path"]
    if bucket in ("moto-api", "latest"):
        assert status in (404, 405, 501), "an object of a bucket that is not there"
    if bucket == "v20180820":
        assert (status == 403) == (key == "node")
    if bucket == "results":
        assert status in (200, 204)


@pytest.mark.parametrize("service", ["motoapi", "moto-api", "monitoring", "logs", "execute-api"])
@pytest.mark.parametrize("path", ["/moto-api/data.json", "/latest/meta-data/iam/", "/favicon.ico"])
def test_no_signed_service_leads_to_it(platform: SimpleNamespace, service: str, path: str) -> None:
    port = urlsplit(platform.endpoint).port
    for key in ("node", "user"):
        status, body = status_of(platform, key, "GET", f"127.0.0.1:{port}", path, service)
        assert status >= 400 and b"Secret" not in body, body


def test_a_bucket_may_have_the_name_of_motos_own_path(platform: SimpleNamespace) -> None:
    for bucket in ("moto-api-runs", "latest"):
        platform.s3.create_bucket(Bucket=bucket)
        platform.s3.put_object(Bucket=bucket, Key="meta-data/x", Body=b"mine")
        body = platform.s3.get_object(Bucket=bucket, Key="meta-data/x")["Body"].read()
        assert body == b"mine"
        platform.s3.delete_object(Bucket=bucket, Key="meta-data/x")
        platform.s3.delete_bucket(Bucket=bucket)
