"""Normalizes request addresses to path style, so that the gate, services and moto agree on them.

Clients can put the bucket into the Host header (virtual-hosted style) or send an absolute URI. Only
the signature is verified against the original address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_VIRTUAL_HOST = re.compile(r"^(?P<bucket>[a-z0-9][a-z0-9.-]+)\.localhost(:\d+)?$")
_ENCODED = re.compile(r"%[0-9a-fA-F]{2}")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_RECEIVED = "nodesweep.received"


def use_path_style(environ: dict[str, Any]) -> None:
    """Rewrite bucket.localhost/key and http://localhost/bucket/key to localhost/bucket/key."""
    for variable in ("RAW_URI", "REQUEST_URI"):
        environ[variable] = _without_authority(str(environ.get(variable, "/")))
    environ[_RECEIVED] = (environ.get("HTTP_HOST", ""), environ["RAW_URI"])
    for variable in ("RAW_URI", "REQUEST_URI"):
        environ[variable] = _ENCODED.sub(_decoded, environ[variable])
    host = _VIRTUAL_HOST.match(environ.get("HTTP_HOST", ""))
    if host is None:
        return
    for variable in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
        environ[variable] = f"/{host['bucket']}{environ.get(variable, '/')}"
    environ["HTTP_HOST"] = environ["HTTP_HOST"].removeprefix(f"{host['bucket']}.")


def _decoded(code: re.Match[str]) -> str:
    """Decode a percent-encoded character if it is unreserved (RFC 3986, section 2.3)."""
    character = chr(int(code[0][1:], 16))
    return character if _UNRESERVED.fullmatch(character) else code[0]


def received_address(environ: Mapping[str, Any]) -> tuple[str, str]:
    """Return the host, and the path with the query, as the client sent and signed them."""
    host, uri = environ[_RECEIVED]
    return str(host), str(uri)


def _without_authority(uri: str) -> str:
    if uri.startswith("/"):
        return uri  # even //bucket/key, whose first segment is not an authority here
    parts = urlsplit(uri)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
