"""boto3 clients for one platform.

Calls to AWS use the user's credentials. Calls to a local platform use the key in its state folder
and bypass any proxy.
"""

from __future__ import annotations

import io
import threading
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from nodesweep.aws.api_models import with_shared_models
from nodesweep.aws.local_keys import local_session
from nodesweep.aws.local_status import loopback_endpoint
from nodesweep.aws.responses import client_of
from nodesweep.configs.models import PlatformConfig

# Throttling is handled twice: boto3's adaptive mode slows the client down, and Prefect retries the
# call if that was not enough.
_CLIENT_CONFIG = Config(
    retries={"mode": "adaptive", "total_max_attempts": 6},
    connect_timeout=10,
    read_timeout=60,
    max_pool_connections=32,
)
_QUICK_CONFIG = _CLIENT_CONFIG.merge(
    Config(
        retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=20
    )
)
_ONE_AT_A_TIME = threading.Lock()  # threads can't share a session to create clients


def make_client(service: str, platform: PlatformConfig, quick: bool = False) -> Any:
    """Return a new client of `service`; see nodesweep.aws.platform.aws_client()."""
    config = _QUICK_CONFIG if quick else _CLIENT_CONFIG
    if platform.credentials == "chain":
        own_models = with_shared_models(botocore.session.Session())
        session = boto3.Session(region_name=platform.region, botocore_session=own_models)
        return _prepared(
            client_of(session, service, endpoint_url=platform.endpoint_url, config=config)
        )
    assert platform.endpoint_url is not None  # the config's validation guarantees it
    endpoint = loopback_endpoint(platform.endpoint_url)
    session = local_session(endpoint, platform.region, platform.state_directory)
    # The checksum of an S3 body is in the signed headers, so signing the body too adds nothing;
    # boto3 does not sign it over HTTPS either.
    own = config.merge(Config(proxies={}, s3={"payload_signing_enabled": False}))
    if service == "s3":  # boto3 presigns with Signature Version 2 in the oldest regions
        own = own.merge(Config(signature_version="s3v4"))
    with _ONE_AT_A_TIME:
        return _prepared(client_of(session, service, endpoint_url=endpoint, config=own))


def _prepared(client: Any) -> Any:
    """Make the client send in-memory objects without waiting for "100 Continue"; return it."""
    client.meta.events.register_last("before-call.s3", _send_bytes_at_once)
    return client


def _send_bytes_at_once(params: dict[str, Any], **_: Any) -> None:
    """Drop the Expect header of an in-memory body.

    With it, boto3 first sends only the headers and waits for "100 Continue". This round trip takes
    as long as the rest of a small upload.
    """
    if isinstance(params.get("body"), io.BytesIO):
        params["headers"].pop("Expect", None)
