"""The status page of the platform, and similar requests to AWS services."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.test import Client

from sagemaker_emulator.api.access import AccessKeys, Gate
from sagemaker_emulator.api.front import Front
from sagemaker_emulator.api.protocol import credential_scope
from sagemaker_emulator.interfaces import AccessKey

KEYS = AccessKeys(AccessKey("user", "a"), AccessKey("node", "b"))


def front(status: dict[str, Any]) -> Client:
    return Client(Front(lambda environ, start_response: [], lambda: status, Gate(KEYS, "own")))


def test_status_of_a_platform_on_its_way_out_is_unavailable() -> None:
    """After status 200, a run would use an endpoint that is about to close."""
    assert front({"running": True}).get("/_nodesweep/status").status_code == 200
    assert front({"running": False, "stopping": True}).get("/_nodesweep/status").status_code == 503


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example:4570"}, {"Origin": "http://evil.example"}]
)
def test_status_is_not_for_web_pages(headers: dict[str, str]) -> None:
    refused = front({"running": True}).get("/_nodesweep/status", headers=headers)
    assert refused.status_code == 403
    assert all(value in refused.text for value in headers.values())


@pytest.mark.parametrize("region", ["..", "us/east", "a b"])
def test_region_is_no_path(region: str) -> None:
    header = (
        "AWS4-HMAC-SHA256 Credential=x/20260101/{}/sagemaker/aws4_request, SignedHeaders=host,"
        " Signature=0f"
    )
    assert credential_scope({"HTTP_AUTHORIZATION": header.format(region)}) is None
    known = credential_scope({"HTTP_AUTHORIZATION": header.format("us-east-1")})
    assert known is not None and (known.key_id, known.service, known.region) == (
        "x",
        "sagemaker",
        "us-east-1",
    )
