"""What the local platform says of itself:
the page that tells it from any other program on its port.

Imports nothing heavy: a command asks this before it imports boto3 or Prefect.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from typing import Any

STATUS_PATH = "/_nodesweep/status"
SERVICE = "nodesweep-local"
"""What the status calls the platform: any program may hold the port, and answer with 200."""
_LONGEST_STATUS_BYTES = 1_000_000


class NotLocalPlatform(ValueError):
    """Something else answers at the endpoint."""


class StatusUnavailable(NotLocalPlatform):
    """A server error in place of the status, or a part of it: asked again, the platform may give
    it.
    """


def read_status(endpoint_url: str, seconds: float) -> dict[str, Any]:
    """The status of the local platform at the endpoint, also while it is stopping (503),
    within so many seconds.

    Raises TimeoutError where no whole answer comes in time, another OSError where nobody listens,
    NotLocalPlatform where something else answers; of those a StatusUnavailable may pass.
    """
    said: list[dict[str, Any] | OSError | NotLocalPlatform] = []

    def ask() -> None:
        try:
            said.append(_ask(endpoint_url, seconds))
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


def _ask(endpoint_url: str, seconds: float) -> dict[str, Any]:
    # No proxy stands between two processes of one machine, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url.rstrip('/')}{STATUS_PATH}", timeout=seconds) as answer:
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
