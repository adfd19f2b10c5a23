"""The access key of a local platform: from its state folder,
which it names and which only its user can read.
"""

from __future__ import annotations

import configparser
import os
import random
import time
from contextlib import suppress
from pathlib import Path

import boto3
import botocore.session
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from tasks.api_models import with_shared_models
from tasks.errors import ForeignAnswer
from tasks.local_status import STATUS_PATH, NotLocalPlatform, StatusUnavailable, read_status

_KEYS_FILE = "aws-credentials"
_ANSWER_SECONDS = 10.0
_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Between two askings of a platform that answers, but not with its status; each give or take a
fifth.
"""


class NoLocalKeys(NoCredentialsError):
    """The platform is there, and its keys can't be read; the message says where they lie."""

    fmt = (
        "the access key of the local platform at {endpoint_url} can't be read from {path}: {reason}"
    )


def local_session(endpoint_url: str, region: str | None) -> boto3.Session:
    """A session with the platform's key and nothing of the user's own set-up:
    no profile and no config file.

    Raises EndpointConnectionError where nobody listens at the endpoint, ReadTimeoutError where no
    answer comes, ForeignAnswer where something else than a local platform answers, NoLocalKeys
    where its key can't be read.
    """
    path = Path(_state_folder(endpoint_url)) / _KEYS_FILE
    keys = configparser.RawConfigParser()
    try:
        keys.read_string(path.read_text())
        key_id = keys["default"]["aws_access_key_id"]
        secret = keys["default"]["aws_secret_access_key"]
    except (OSError, KeyError, configparser.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise NoLocalKeys(endpoint_url=endpoint_url, path=path, reason=reason) from error
    own = botocore.session.Session(
        {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
    )
    return boto3.Session(
        key_id, secret, region_name=region, botocore_session=with_shared_models(own)
    )


def _state_folder(endpoint_url: str) -> str:
    """As the platform names it, also while it is stopping; asked again where a gateway answers in
    its place.
    """
    try:
        for pause_seconds in _PAUSES_SECONDS:
            with suppress(StatusUnavailable):
                return str(read_status(endpoint_url, _ANSWER_SECONDS)["state_dir"])
            time.sleep(pause_seconds * random.uniform(0.8, 1.2))
        return str(read_status(endpoint_url, _ANSWER_SECONDS)["state_dir"])
    except NotLocalPlatform as error:
        answer = f"it is not nodesweep's local platform ({error})"
        raise ForeignAnswer(
            endpoint_url=endpoint_url, operation=STATUS_PATH, answer=answer
        ) from error
    except TimeoutError as error:
        raise ReadTimeoutError(endpoint_url=endpoint_url, error=error) from error
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=endpoint_url, error=error) from error
