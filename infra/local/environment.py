"""Which of the caller's environment variables go on: an allow-list, so that no secret reaches
server, build or node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import nodesweep

IMPORT_ROOT = str(Path(nodesweep.__file__).resolve().parents[1])
"""What a child has on sys.path to import nodesweep: a checkout, or the site-packages of a wheel."""

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
# //user:password@, and a password that holds a slash: what follows the colon is no port then.
_USER_PART = re.compile(r"(?<=://)(?:[^\s/]*|[^\s/@:]*:(?!\d+(?:[/?#\s]|$))\S*)@")


def server_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """For the platform's server and the installers that it starts: places, proxies, certificates,
    settings of pip.
    """
    return {
        name: value
        for name, value in caller.items()
        if name in _SERVER_NAMES or name.startswith(_SERVER_PREFIXES)
    }


def node_environment_of(server: Mapping[str, str]) -> dict[str, str]:
    """For a node, whose job may install packages too: the same without places, and URLs without
    user and password.
    """
    return {
        name: _USER_PART.sub("", value)
        for name, value in server.items()
        if name in _LOCALE_AND_NETWORK or name.startswith(_NODE_PREFIXES)
    }
