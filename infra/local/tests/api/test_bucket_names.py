"""CreateBucket accepts the same names as S3, so that a config that runs here can run on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from infra.local.tests.api.test_access import send
from infra.local.tests.platform_client import serve_platform
from sagemaker_emulator.api.access import access_keys


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    yield from serve_platform(tmp_path_factory.mktemp("platform"))


def create(served: SimpleNamespace, path: str) -> tuple[int, str]:
    """Create a bucket without the name check of the client."""
    key = access_keys(served.state_dir).user
    request = AWSRequest("PUT", f"{served.endpoint}/{path}", {})
    S3SigV4Auth(Credentials(key.id, key.secret), "s3", "us-east-1").add_auth(request)
    return send(request.url, dict(request.headers), method="PUT")


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    "name",
    ["a..b", "1.2.3.4", "A_B", "a_b", "ab", "a" * 64, "-ab", "ab-", ".ab", "ab.", "Abc", "a%20b",
     "xn--abc", "sthree-abc", "abc-s3alias", "abc--ol-s3", "abc.mrap", "abc--x-s3"],
)  # fmt: skip
def test_a_name_that_s3_refuses_is_refused(served: SimpleNamespace, name: str, slash: str) -> None:
    status, text = create(served, name + slash)
    assert (status, "<Code>InvalidBucketName</Code>" in text) == (400, True), text
    assert name not in [one["Name"] for one in served.s3.list_buckets()["Buckets"]]


ALLOWED = ["abc", "a.b-c", "1.2.3.4.5", "nodesweep-123456789012-us-east-1", "a" * 63, "0ab"]


@pytest.mark.parametrize("name", ALLOWED)
def test_a_name_that_s3_allows_is_taken(served: SimpleNamespace, name: str) -> None:
    assert create(served, name)[0] == 200
    served.s3.head_bucket(Bucket=name)
