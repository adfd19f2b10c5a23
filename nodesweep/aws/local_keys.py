"""The access key of a local platform, which is in its state folder and readable only by its user.

Whatever responds at the endpoint has to prove that it holds the same key.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import boto3
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from nodesweep.aws.api_models import session_without_profiles, with_shared_models
from nodesweep.aws.local_status import (
    STATUS_PATH,
    KeyUnreadable,
    LocalKey,
    NotLocalPlatform,
    NotOwnPlatform,
    StatusUnavailable,
    own_status,
    read_key,
    read_status,
)
from nodesweep.errors import CallTimedOut, ForeignResponse

_ANSWER_SECONDS = 10.0
_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Pauses between polls of a platform that responds without its status, each ±20%."""


class NoLocalKeys(NoCredentialsError):
    """A platform responds, but its access key cannot be read from the state folder."""

    fmt = (
        "the access key of the local platform at {endpoint_url} can't be read from {path}:"
        " {reason}. The key is in the platform's state folder: set platform.state_directory to"
        " that folder"
    )


class ForeignPlatform(NoCredentialsError):
    """The responder has not proven that it has the state folder's key, so nothing is sent to it."""

    fmt = (
        "{endpoint_url} is not the local platform of {state_directory}: it could not prove that it"
        " has that folder's key, so nothing is sent to it. Set platform.endpoint_url to the port"
        " of your own platform, or platform.state_directory to its folder"
    )


def local_session(
    endpoint_url: str, region: str | None, state_directory: str | Path
) -> boto3.Session:
    """Return a session with the state folder's key and without the user's profiles and config file.

    Raises:
        EndpointConnectionError: nothing is listening at the endpoint.
        CallTimedOut: no response arrives.
        ForeignResponse: something other than a local platform responds.
        NoLocalKeys: the state folder's key cannot be read.
        ForeignPlatform: the platform does not prove that it has that key.
    """
    try:
        key = read_key(state_directory)
    except KeyUnreadable as error:
        _check_responder(endpoint_url, None)
        raise NoLocalKeys(endpoint_url=endpoint_url, path=error.path, reason=error) from error
    try:
        _check_responder(endpoint_url, key)
    except NotOwnPlatform as error:
        raise ForeignPlatform(endpoint_url=endpoint_url, state_directory=state_directory) from error
    return _session_of(key, region)


@lru_cache(maxsize=16)
def _session_of(key: LocalKey, region: str | None) -> boto3.Session:
    """Return the session of all clients with this key; a new one takes longer than a client."""
    own = with_shared_models(session_without_profiles())
    return boto3.Session(key.id, key.secret, region_name=region, botocore_session=own)


def _check_responder(endpoint_url: str, key: LocalKey | None) -> None:
    """Wait until a local platform has responded, even one that is stopping.

    With a key, only the platform that holds it counts. A gateway's error response is retried.

    Raises:
        NotOwnPlatform: the platform has not proven that it has the key.
    """
    try:
        for pause_seconds in _PAUSES_SECONDS:
            with suppress(StatusUnavailable):
                return _read_status_once(endpoint_url, key)
            time.sleep(pause_seconds * random.uniform(0.8, 1.2))
        return _read_status_once(endpoint_url, key)
    except NotOwnPlatform:
        raise
    except NotLocalPlatform as error:
        answer = f"it is not nodesweep's local platform ({error})"
        raise ForeignResponse(
            endpoint_url=endpoint_url, operation=STATUS_PATH, answer=answer
        ) from error
    except TimeoutError as error:
        raise CallTimedOut(
            endpoint_url=endpoint_url, operation=STATUS_PATH, seconds=_ANSWER_SECONDS
        ) from error
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=endpoint_url, error=error) from error


def _read_status_once(endpoint_url: str, key: LocalKey | None) -> None:
    if key is None:
        read_status(endpoint_url, _ANSWER_SECONDS)
    else:
        own_status(endpoint_url, key, _ANSWER_SECONDS)
