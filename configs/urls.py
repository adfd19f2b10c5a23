"""What a URL may look like that AWS calls are sent to."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit


def url_problem(url: str) -> str | None:
    """Why an http(s) URL can't be an endpoint, or None."""
    if re.search(r"\s", url):
        return "a URL holds no white space"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"not a URL: {error}"
    if not parts.hostname:
        return "the host is missing"
    if port == 0:
        return "port 0 is no port to call"
    if "@" in parts.netloc:
        return "no user or password here (platform.credentials says which keys are used)"
    return "a query or fragment has no place in an endpoint" if parts.query or parts.fragment else None


def is_loopback_with_port(url: str | None) -> bool:
    """Whether a URL is http on this machine's loopback, its port named: a place to start a platform at."""
    parts = urlsplit(url or "")
    try:
        loopback = parts.hostname == "localhost" or ipaddress.IPv4Address(parts.hostname or "").is_loopback
    except ipaddress.AddressValueError:
        return False
    return parts.scheme == "http" and loopback and parts.port is not None
