"""What the local platform says of itself: the page that tells it from any other program on its port.

Imports nothing heavy: a command asks this before it imports boto3 or Prefect.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

STATUS_PATH = "/_nodesweep/status"
SERVICE = "nodesweep-local"
"""What the status calls the platform: any program may hold the port, and answer with 200."""
_LONGEST_STATUS_BYTES = 1_000_000


class NotLocalPlatform(ValueError):
    """Something else answers at the endpoint."""


def read_status(endpoint_url: str, seconds: float) -> dict[str, Any]:
    """The status of the local platform at the endpoint, also while it is stopping (503), within so many seconds.

    Raises OSError where nothing answers, NotLocalPlatform where something else does.
    """
    # No proxy stands between two processes of one machine, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url.rstrip('/')}{STATUS_PATH}", timeout=seconds) as answer:
            said = answer.read(_LONGEST_STATUS_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_LONGEST_STATUS_BYTES)
    except http.client.HTTPException as error:
        raise NotLocalPlatform(str(error)) from error
    return _own_status(said)


def _own_status(said: bytes) -> dict[str, Any]:
    try:
        status = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise NotLocalPlatform("no JSON") from error
    if not isinstance(status, dict) or status.get("service") != SERVICE or "state_dir" not in status:
        raise NotLocalPlatform("no status of a local platform of this version")
    return status
