"""boto3 clients for one platform: the only difference between AWS and this machine
is the endpoint URL.
"""

from __future__ import annotations

import io
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from nodesweep.configs.models import PlatformConfig
from nodesweep.tasks.answers import client_of
from nodesweep.tasks.api_models import with_shared_models
from nodesweep.tasks.local_keys import local_session
from nodesweep.tasks.local_status import loopback_endpoint

# Throttling is met twice: boto3's adaptive mode slows the client, Prefect repeats the call when
# that was not enough.
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


def make_client(service: str, platform: PlatformConfig, quick: bool = False) -> Any:
    """A new client of `service`, as nodesweep.tasks.platform.aws_client() says."""
    config = _QUICK_CONFIG if quick else _CLIENT_CONFIG
    if platform.credentials == "chain":
        own_models = with_shared_models(botocore.session.Session())
        session = boto3.Session(region_name=platform.region, botocore_session=own_models)
        return _prepared(
            client_of(session, service, endpoint_url=platform.endpoint_url, config=config)
        )
    assert platform.endpoint_url is not None  # the config's own rule
    endpoint = loopback_endpoint(platform.endpoint_url)
    session = local_session(endpoint, platform.region, platform.state_directory)
    # A body is sent to S3 with a checksum in the headers, which are signed; over HTTPS boto3 does
    # not sign it as well either.
    own = config.merge(Config(proxies={}, s3={"payload_signing_enabled": False}))
    if service == "s3":  # boto3's own choice for links in the oldest regions is Version 2
        own = own.merge(Config(signature_version="s3v4"))
    return _prepared(client_of(session, service, endpoint_url=endpoint, config=own))


def _prepared(client: Any) -> Any:
    """The client, which sends objects that are held in memory at once."""
    client.meta.events.register_last("before-call.s3", _send_bytes_at_once)
    return client


def _send_bytes_at_once(params: dict[str, Any], **_: Any) -> None:
    """boto3 sends the headers of every PutObject alone and waits for "100 Continue", since a body
    may be long. For bytes that wait is a whole round trip, as long as all else of a small object.
    """
    if isinstance(params.get("body"), io.BytesIO):
        params["headers"].pop("Expect", None)
