"""boto3 clients for one platform: the only difference between AWS and this machine
is the endpoint URL.
"""

from __future__ import annotations

import io
import logging
import random
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import boto3
import botocore.session
from botocore.config import Config

from configs.models import PlatformConfig
from tasks.answers import client_of
from tasks.api_models import with_shared_models
from tasks.errors import is_transient, retry_transient
from tasks.local_keys import local_session
from tasks.local_status import loopback_endpoint
from tasks.polling import Clock

logger = logging.getLogger("nodesweep.platform")

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
SHORT_PAUSES_SECONDS = (2.0, 4.0, 8.0)
TASK_OPTIONS: dict[str, Any] = {
    "retries": len(SHORT_PAUSES_SECONDS),
    "retry_delay_seconds": list(SHORT_PAUSES_SECONDS),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": retry_transient,
}
"""Options of every task that calls a platform."""
OUTAGE_PAUSES_SECONDS = (2.0, 4.0, 8.0, 16.0, 32.0, *(60.0,) * 9)
PATIENT_TASK_OPTIONS: dict[str, Any] = TASK_OPTIONS | {
    "retries": len(OUTAGE_PAUSES_SECONDS),
    "retry_delay_seconds": list(OUTAGE_PAUSES_SECONDS),
}
"""Options of tasks that are called while jobs run,
which cost money whether or not somebody looks at them.

An outage is waited out for 10 minutes, 6 to 15 with the jitter (each pause x 0.63 to 1.5), beside
boto3's own tries.
"""
OUTAGE_JITTER = (0.63, 1.5)  # what Prefect makes of retry_jitter_factor 0.5
_P = ParamSpec("_P")
_T = TypeVar("_T")


def patient(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a call that is made for every job of a sweep:
    it waits an outage out as a patient task does.

    But it is no task. A task run takes about 20 KB of Prefect's database and 20 to 70 ms, and one
    that has only looked at something tells nobody anything. Raises what the last try raised, and at
    once what no further try would help.
    """

    return _repeated(call, lambda: OUTAGE_PAUSES_SECONDS)


def persistent(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a call that needs no Prefect: it is repeated as often as a task of TASK_OPTIONS."""
    return _repeated(call, lambda: SHORT_PAUSES_SECONDS)


def _repeated(call: Callable[_P, _T], pauses: Callable[[], tuple[float, ...]]) -> Callable[_P, _T]:
    @wraps(call)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for pause in pauses():
            try:
                return call(*args, **kwargs)
            except Exception as error:
                if not is_transient(error):
                    raise
                seconds = pause * random.uniform(*OUTAGE_JITTER)
                logger.warning(
                    "%s: %s; trying again in %.0f s",
                    call.__name__.replace("_", " "),
                    error,
                    seconds,
                )
            Clock().sleep(seconds)
        return call(*args, **kwargs)

    return tried


@lru_cache(maxsize=64)
def aws_client(service: str, platform: PlatformConfig, quick: bool = False) -> Any:
    """A client of `service`; clients are thread-safe and kept, so that connections are reused.

    `quick` gives up after seconds rather than minutes: for questions that may stay unanswered. Its
    calls raise what client_of() says. Raises what local_session() does where the keys are the
    platform's own.
    """
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
