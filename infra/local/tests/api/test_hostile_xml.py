"""Hostile XML is refused quickly, as an error of the client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from infra.local.tests.api.test_access import send
from infra.local.tests.platform_client import serve_platform
from sagemaker_emulator.api.access import access_keys

LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BOMBS = {
    "billion laughs": f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><a>&l9;</a>',
    "quadratic": f'<!DOCTYPE a [<!ENTITY x "{"x" * 50_000}">]><a>{"&x;" * 5_000}</a>',
    "external": '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    "parameter": '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x"> %x;]><a/>',
    "remote DTD": '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x"><a/>',
    "one entity": '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
    "deep": "<a>" * 100_000 + "</a>" * 100_000,
    "cut": "<Tagging><TagSet>",
    "no XML": "\x00\x01{}",
    "encoding": "<?xml version='1.0' encoding='utf-99'?><a/>",
    "UTF-7": "<?xml version='1.0' encoding='utf-7'?>+ADw-a/+AD4-",
}
CALLS = [
    ("PUT", "/made-by-xml"),
    ("PUT", "/bombed?tagging"),
    ("PUT", "/bombed?lifecycle"),
    ("PUT", "/bombed?versioning"),
    ("PUT", "/bombed?cors"),
    ("PUT", "/bombed?encryption"),
    ("PUT", "/bombed?acl"),
    ("PUT", "/bombed?notification"),
    ("PUT", "/bombed?logging"),
    ("PUT", "/bombed?publicAccessBlock"),
    ("PUT", "/bombed?object-lock"),
    ("PUT", "/bombed?replication"),
    ("PUT", "/bombed?accelerate"),
    ("PUT", "/bombed?website"),
    ("PUT", "/bombed?ownershipControls"),
    ("PUT", "/bombed/key?tagging"),
    ("PUT", "/bombed/key?acl"),
    ("PUT", "/bombed/key?retention"),
    ("PUT", "/bombed/key?legal-hold"),
    ("POST", "/bombed?delete"),
    ("POST", "/bombed/key?uploadId={upload}"),
    ("POST", "/bombed/key?restore"),
    ("POST", "/bombed/key?select&select-type=2"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        platform.s3.create_bucket(Bucket="bombed")
        platform.s3.put_object(Bucket="bombed", Key="key", Body=b"1")
        upload = platform.s3.create_multipart_upload(Bucket="bombed", Key="key")
        yield SimpleNamespace(platform=platform, upload=upload["UploadId"])


@pytest.mark.parametrize("bomb", BOMBS)
def test_xml_that_is_made_to_hurt_is_the_clients_mistake(
    served: SimpleNamespace, bomb: str
) -> None:
    key = access_keys(served.platform.state_dir).user
    failed = {}
    for method, path in CALLS:
        url = served.platform.endpoint + path.format(upload=served.upload)
        body = BOMBS[bomb].encode()
        request = AWSRequest(method, url, {"Content-Type": "application/xml"}, body)
        S3SigV4Auth(Credentials(key.id, key.secret), "s3", "us-east-1").add_auth(request)
        began = time.process_time()  # including the threads of the platform
        status, text = send(url, dict(request.headers), body, method)
        # operations that moto lacks return 501
        is_refused = status == 501 or (400 <= status < 500 and "MalformedXML" in text)
        if not is_refused or time.process_time() - began > 60:
            failed[method, path] = status, text[:100]
    assert failed == {}


def test_an_object_may_hold_any_xml(served: SimpleNamespace) -> None:
    s3, place = served.platform.s3, {"Bucket": "bombed", "Key": "some.xml"}
    s3.put_object(**place, Body=BOMBS["billion laughs"], ContentType="application/xml")
    assert s3.get_object(**place)["Body"].read() == BOMBS["billion laughs"].encode()
