"""Allow-lists of environment variables that keep secrets from the server, builds and nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

IMPORT_ROOT = str(Path(__file__).resolve().parents[1])
"""The sys.path entry from which child processes can import this package."""

_LOCALE_AND_NETWORK = frozenset(
    {"LANG", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
_NODE_PREFIXES = ("PIP_", "LC_")
_SERVER_NAMES = (
    _LOCALE_AND_NETWORK
    | {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "CC",
        "CXX",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
    }
    | {
        "DOCKER_HOST",
        "DOCKER_CONFIG",
        "CONTAINERS_CONF",
        "CONTAINERS_REGISTRIES_CONF",
        "CONTAINERS_STORAGE_CONF",
    }
)
_SERVER_PREFIXES = ("PIP_", "UV_", "LC_", "PYTHON")
# user:password@ in a URL. If no port follows the colon, the password can contain a slash.
_USER_PART = re.compile(r"(?<=://)(?:[^\s/]*|[^\s/@:]*:(?!\d+(?:[/?#\s]|$))\S*)@")


def server_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for the platform's server and the installers it starts.

    These set paths, proxies, certificates, pip and container engines.
    """
    return {
        name: value
        for name, value in caller.items()
        if name in _SERVER_NAMES or name.startswith(_SERVER_PREFIXES)
    }


def node_environment_of(server: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for a node.

    These are the server's variables for the locale, the network and pip (since jobs can install
    packages). User names and passwords are removed from URLs.
    """
    return {
        name: _USER_PART.sub("", value)
        for name, value in server.items()
        if name in _LOCALE_AND_NETWORK or name.startswith(_NODE_PREFIXES)
    }
