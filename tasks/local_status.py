"""What the local platform says of itself: the page that tells it from any other program on its
port, and from the platform of another state folder.

Whoever listens on the port can say that it is the platform, so one's own is known by its key: it is
asked with a random number, and answers with an HMAC of that number and its own endpoint. A server
that hands the question on to a platform elsewhere gets the proof of another endpoint.

Imports nothing heavy: a command asks this before it imports boto3 or Prefect.
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
"""What the status calls the platform: any program may hold the port, and answer with 200."""
KEYS_FILE = "aws-credentials"
"""In the state folder, readable by its user alone: the key that the platform answers with."""
SERVER_FILE = "server.json"
"""In the state folder: where its platform was served last."""
_LONGEST_STATUS_BYTES = 1_000_000


class NotLocalPlatform(ValueError):
    """Something else answers at the endpoint."""


class NotOwnPlatform(NotLocalPlatform):
    """A local platform may answer, but none that has proven the key of the state folder."""


class KeyUnreadable(ValueError):
    """The state folder's key can't be read; `path` names its file, the message the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(reason)


@dataclass(frozen=True)
class LocalKey:
    """The access key of a state folder's platform."""

    id: str
    secret: str = field(repr=False)


def read_key(state_directory: str | Path) -> LocalKey:
    """The key in a state folder of one's own. Raises KeyUnreadable."""
    path = Path(state_directory) / KEYS_FILE
    keys = configparser.RawConfigParser()
    try:
        with path.open() as file:
            if problem := _why_unsafe(os.fstat(file.fileno())):
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
        raise KeyUnreadable(path, "it is damaged") from error


def _why_unsafe(found: os.stat_result) -> str | None:
    """Why a key in such a file is not used: another user may know it, or have written it."""
    remedy = "remove it and start the platform again, which makes new keys"
    if found.st_uid not in (os.geteuid(), 0):
        return f"it is user {found.st_uid}'s, not this user's; {remedy}"
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        return f"its mode is {mode:o}, so others may reach it; {remedy}"
    return None


def served_endpoint(state_directory: str | Path) -> str | None:
    """Where the state folder's platform was served last, None where it never was;
    to be asked whether it still is.
    """
    try:
        said = json.loads((Path(state_directory) / SERVER_FILE).read_bytes())
        return str(said["endpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def loopback_endpoint(endpoint_url: str) -> str:
    """The URL with 127.0.0.1 in place of localhost, where the platform does not listen on every
    address of that name.
    """
    parts = urlsplit(endpoint_url.rstrip("/"))
    if parts.hostname != "localhost":
        return endpoint_url.rstrip("/")
    port = "" if parts.port is None else f":{parts.port}"
    return parts._replace(netloc=f"127.0.0.1{port}").geturl()


def proof_of(secret: str, endpoint: str, nonce: str) -> str:
    """What only the platform with this key answers at this endpoint."""
    message = f"{SERVICE}\n{endpoint}\n{nonce}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def own_status(endpoint_url: str, key: LocalKey, seconds: float) -> dict[str, Any]:
    """read_status() of the platform that holds this key.

    Raises NotOwnPlatform for one that does not prove it, and what read_status() raises.
    """
    endpoint, nonce = loopback_endpoint(endpoint_url), secrets.token_hex(32)
    status = read_status(endpoint, seconds, nonce)
    expected = proof_of(key.secret, endpoint, nonce)
    if not hmac.compare_digest(expected.encode(), str(status.get("proof")).encode()):
        raise NotOwnPlatform("it has not proven the key of this state folder")
    return status


class StatusUnavailable(NotLocalPlatform):
    """A server error in place of the status, or a part of it: asked again, the platform may give
    it.
    """


def read_status(endpoint_url: str, seconds: float, nonce: str | None = None) -> dict[str, Any]:
    """The status of the local platform at the endpoint, also while it is stopping (503),
    within so many seconds. Whoever listens may have said it: own_status() knows one's own.

    Raises TimeoutError where no whole answer comes in time, another OSError where nobody listens,
    NotLocalPlatform where something else answers; of those a StatusUnavailable may pass.
    """
    said: list[dict[str, Any] | OSError | NotLocalPlatform] = []

    def ask() -> None:
        try:
            said.append(_ask(endpoint_url, seconds, nonce))
        except (OSError, NotLocalPlatform) as error:
            said.append(error)

    # A socket's own limit begins anew with every byte,
    # so that an answer that drips would be read for ever.
    asking = threading.Thread(target=ask, name="local-status", daemon=True)
    asking.start()
    asking.join(seconds)
    if not said:
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    if isinstance(said[0], Exception):
        raise said[0]
    return said[0]


def _ask(endpoint_url: str, seconds: float, nonce: str | None) -> dict[str, Any]:
    # No proxy stands between two processes of one machine, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"{endpoint_url.rstrip('/')}{STATUS_PATH}" + (f"?nonce={nonce}" if nonce else "")
    try:
        with opener.open(url, timeout=seconds) as answer:
            said = answer.read(_LONGEST_STATUS_BYTES)
            if answer.length:
                raise StatusUnavailable(f"{answer.length} bytes of it are missing")
            return _own_status(said)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_LONGEST_STATUS_BYTES)
        try:
            return _own_status(said)
        except NotLocalPlatform as foreign:
            raise (StatusUnavailable if error.code >= 500 else NotLocalPlatform)(
                f"HTTP {error.code}"
            ) from foreign
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from error
    except http.client.HTTPException as error:
        raise StatusUnavailable(str(error)) from error


def _own_status(said: bytes) -> dict[str, Any]:
    try:
        status = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise NotLocalPlatform("no JSON") from error
    if (
        not isinstance(status, dict)
        or status.get("service") != SERVICE
        or "state_dir" not in status
    ):
        raise NotLocalPlatform("no status of a local platform of this version")
    return status
