"""The access key of a local platform: from the state folder that the config names,
which only its user can read. What answers at the endpoint has to prove that it holds that key.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

import boto3
import botocore.session
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from nodesweep.tasks.api_models import with_shared_models
from nodesweep.tasks.errors import CallTimedOut, ForeignAnswer
from nodesweep.tasks.local_status import (
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

_ANSWER_SECONDS = 10.0
_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Between two askings of a platform that answers, but not with its status; each give or take a
fifth.
"""


class NoLocalKeys(NoCredentialsError):
    """A platform is there, and the own key can't be read; the message says where it should lie."""

    fmt = (
        "the access key of the local platform at {endpoint_url} can't be read from {path}:"
        " {reason}. It lies in the platform's state folder: name it in platform.state_directory"
    )


class ForeignPlatform(NoCredentialsError):
    """What answers has not proven the own key, so it is sent nothing."""

    fmt = (
        "{endpoint_url} is not the local platform of {state_directory}: it has not proven that"
        " folder's key, so it is sent nothing. Name the port of your own platform in"
        " platform.endpoint_url, or its folder in platform.state_directory"
    )


def local_session(
    endpoint_url: str, region: str | None, state_directory: str | Path
) -> boto3.Session:
    """A session with the key of the state folder and nothing of the user's own set-up:
    no profile and no config file.

    Raises EndpointConnectionError where nobody listens at the endpoint, CallTimedOut where no
    answer comes, ForeignAnswer where something else than a local platform answers, NoLocalKeys
    where the folder's key can't be read, ForeignPlatform where a platform does not prove that key.
    """
    try:
        key = read_key(state_directory)
    except KeyUnreadable as error:
        _ask(endpoint_url, None)
        raise NoLocalKeys(endpoint_url=endpoint_url, path=error.path, reason=error) from error
    try:
        _ask(endpoint_url, key)
    except NotOwnPlatform as error:
        raise ForeignPlatform(endpoint_url=endpoint_url, state_directory=state_directory) from error
    own = botocore.session.Session(
        {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
    )
    return boto3.Session(
        key.id, key.secret, region_name=region, botocore_session=with_shared_models(own)
    )


def _ask(endpoint_url: str, key: LocalKey | None) -> None:
    """Return once a platform has answered, with a key the one that holds it, also while it is
    stopping; asked again where a gateway answers in its place. Raises NotOwnPlatform.
    """
    try:
        for pause_seconds in _PAUSES_SECONDS:
            with suppress(StatusUnavailable):
                return _ask_once(endpoint_url, key)
            time.sleep(pause_seconds * random.uniform(0.8, 1.2))
        return _ask_once(endpoint_url, key)
    except NotOwnPlatform:
        raise
    except NotLocalPlatform as error:
        answer = f"it is not nodesweep's local platform ({error})"
        raise ForeignAnswer(
            endpoint_url=endpoint_url, operation=STATUS_PATH, answer=answer
        ) from error
    except TimeoutError as error:
        raise CallTimedOut(
            endpoint_url=endpoint_url, operation=STATUS_PATH, seconds=_ANSWER_SECONDS
        ) from error
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=endpoint_url, error=error) from error


def _ask_once(endpoint_url: str, key: LocalKey | None) -> None:
    if key is None:
        read_status(endpoint_url, _ANSWER_SECONDS)
    else:
        own_status(endpoint_url, key, _ANSWER_SECONDS)
