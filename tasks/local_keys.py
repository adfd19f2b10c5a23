"""The access key of a local platform: from its state folder, which it names and which only its user can read."""

from __future__ import annotations

import configparser
import http.client
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import boto3
import botocore.session
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

_STATUS_PATH = "/_nodesweep/status"
_KEYS_FILE = "aws-credentials"
_ANSWER_SECONDS = 10.0


class NoLocalKeys(NoCredentialsError):
    """The platform is there, and its keys can't be read; the message says where they lie."""

    fmt = "the access key of the local platform at {endpoint_url} can't be read from {path}: {reason}"


def local_session(endpoint_url: str, region: str | None) -> boto3.Session:
    """A session with the platform's key and nothing of the user's own set-up: no profile and no config file.

    Raises EndpointConnectionError where no local platform answers at the endpoint, NoLocalKeys where its key can't be
    read.
    """
    path = Path(_state_folder(endpoint_url)) / _KEYS_FILE
    keys = configparser.RawConfigParser()
    try:
        keys.read_string(path.read_text())
        key_id, secret = keys["default"]["aws_access_key_id"], keys["default"]["aws_secret_access_key"]
    except (OSError, KeyError, configparser.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise NoLocalKeys(endpoint_url=endpoint_url, path=path, reason=reason) from error
    own = botocore.session.Session({"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)})
    return boto3.Session(key_id, secret, region_name=region, botocore_session=own)


def _state_folder(endpoint_url: str) -> str:
    """As the platform names it, also while it is stopping (503)."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url.rstrip('/')}{_STATUS_PATH}", timeout=_ANSWER_SECONDS) as answer:
            return str(json.load(answer)["state_dir"])
    except urllib.error.HTTPError as error:
        with error:
            return _folder_of(error.read(), endpoint_url)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise EndpointConnectionError(endpoint_url=endpoint_url) from error


def _folder_of(answer: bytes, endpoint_url: str) -> str:
    try:
        return str(json.loads(answer)["state_dir"])
    except (ValueError, KeyError, TypeError) as error:
        raise EndpointConnectionError(endpoint_url=endpoint_url) from error
