"""The local platform's status page, which distinguishes it from other programs and platforms.

Any program can claim to be the platform, so the platform must prove that it has the key. It
responds to a random number with an HMAC of that number and its endpoint, which a relay to a
different platform cannot produce. This module imports nothing heavy, because a command reads the
status before it imports boto3 or Prefect.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import http.client
import json
import os
import secrets
import stat
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STATUS_PATH = "/_nodesweep/status"
SERVICE = "nodesweep-local"
"""The platform's name in its status; any program can hold the port and respond with 200."""
KEYS_FILE = "aws-credentials"
"""File in the state folder with the platform's key, readable by its user only."""
SERVER_FILE = "server.json"
"""File in the state folder with the platform's last endpoint."""
_LONGEST_STATUS_BYTES = 1_000_000
_NEW_KEYS = "remove it and restart the platform, which creates new keys"


class NotLocalPlatform(ValueError):
    """Something other than a local platform responds at the endpoint."""


class NotOwnPlatform(NotLocalPlatform):
    """The responder may be a local platform, but has not proven to have the state folder's key."""


class KeyUnreadable(ValueError):
    """The state folder's key cannot be read; `path` is its file."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(reason)


@dataclass(frozen=True)
class LocalKey:
    """The access key of a state folder's platform."""

    id: str
    secret: str = field(repr=False)


def read_key(state_directory: str | Path) -> LocalKey:
    """Return the key from the user's own state folder.

    Raises:
        KeyUnreadable: the file is missing, damaged or accessible to other users.
    """
    path = Path(state_directory) / KEYS_FILE
    keys = configparser.RawConfigParser()
    try:
        with path.open() as file:
            if problem := why_unsafe(os.fstat(file.fileno()), _NEW_KEYS):
                raise KeyUnreadable(path, problem)
            keys.read_string(file.read())
        return LocalKey(
            keys["default"]["aws_access_key_id"], keys["default"]["aws_secret_access_key"]
        )
    except KeyUnreadable:
        raise
    except OSError as error:
        raise KeyUnreadable(path, error.strerror or str(error)) from error
    except (KeyError, ValueError, configparser.Error) as error:
        raise KeyUnreadable(path, f"it is damaged; {_NEW_KEYS}") from error


def why_unsafe(found: os.stat_result, remedy: str) -> str | None:
    """Return why another user could read or write a secret file; None if it is safe to use."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}, not to you; {remedy}"
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        return f"its mode is {mode:o}, so other users can access it; {remedy}"
    return None


def served_endpoint(state_directory: str | Path) -> str | None:
    """Return the last endpoint of the state folder's platform, which may have stopped since.

    None if no endpoint is recorded.
    """
    try:
        record = json.loads((Path(state_directory) / SERVER_FILE).read_bytes())
        return str(record["endpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def loopback_endpoint(endpoint_url: str) -> str:
    """Return the URL with 127.0.0.1 instead of localhost.

    The platform does not listen on every address that localhost resolves to.
    """
    parts = urlsplit(endpoint_url.rstrip("/"))
    if parts.hostname != "localhost":
        return endpoint_url.rstrip("/")
    port = "" if parts.port is None else f":{parts.port}"
    return parts._replace(netloc=f"127.0.0.1{port}").geturl()


def proof_of(secret: str, endpoint: str, nonce: str) -> str:
    """Return the proof that only a platform with this key can give at this endpoint."""
    message = f"{SERVICE}\n{endpoint}\n{nonce}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def own_status(endpoint_url: str, key: LocalKey, seconds: float) -> dict[str, Any]:
    """Return the status of the platform that holds this key.

    The errors of read_status() propagate.

    Raises:
        NotOwnPlatform: the responder does not prove that it has the key.
    """
    endpoint, nonce = loopback_endpoint(endpoint_url), secrets.token_hex(32)
    status = read_status(endpoint, seconds, nonce)
    expected = proof_of(key.secret, endpoint, nonce)
    if not hmac.compare_digest(expected.encode(), str(status.get("proof")).encode()):
        raise NotOwnPlatform("it could not prove that it has the key of this state folder")
    return status


class StatusUnavailable(NotLocalPlatform):
    """A transient failure: a server error or a truncated status."""


def read_status(endpoint_url: str, seconds: float, nonce: str | None = None) -> dict[str, Any]:
    """Return the status of the local platform at the endpoint, even while it is stopping (503).

    The platform is not authenticated here; own_status() also verifies its key.

    Args:
        endpoint_url: the platform's URL.
        seconds: deadline of the whole response.
        nonce: random number that the platform's proof must cover; see proof_of().

    Raises:
        TimeoutError: no complete response by the deadline.
        OSError: nothing is listening.
        NotLocalPlatform: something else responds; a StatusUnavailable is transient.
    """
    result: list[dict[str, Any] | OSError | NotLocalPlatform] = []

    def fetch() -> None:
        try:
            result.append(_get_status(endpoint_url, seconds, nonce))
        except (OSError, NotLocalPlatform) as error:
            result.append(error)

    # A socket's timeout restarts with every byte, so a response that trickles in would be read
    # forever.
    thread = threading.Thread(target=fetch, name="local-status", daemon=True)
    thread.start()
    thread.join(seconds)
    if not result:
        raise TimeoutError(f"no complete response within {seconds:g} s")
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def _get_status(endpoint_url: str, seconds: float, nonce: str | None) -> dict[str, Any]:
    # Both processes are on one machine, so ignore the environment's proxies.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"{endpoint_url.rstrip('/')}{STATUS_PATH}" + (f"?nonce={nonce}" if nonce else "")
    try:
        with opener.open(url, timeout=seconds) as answer:
            body = answer.read(_LONGEST_STATUS_BYTES)
            if answer.length:
                raise StatusUnavailable(f"{answer.length} bytes of its status are missing")
            return _parse_status(body)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(_LONGEST_STATUS_BYTES)
        try:
            return _parse_status(body)
        except NotLocalPlatform as foreign:
            raise (StatusUnavailable if error.code >= 500 else NotLocalPlatform)(
                f"HTTP {error.code}"
            ) from foreign
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from error
    except http.client.HTTPException as error:
        raise StatusUnavailable(str(error)) from error


def _parse_status(body: bytes) -> dict[str, Any]:
    try:
        status = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotLocalPlatform("not JSON") from error
    if (
        not isinstance(status, dict)
        or status.get("service") != SERVICE
        or "state_dir" not in status
    ):
        raise NotLocalPlatform("not the status of a local platform of this version")
    return status
