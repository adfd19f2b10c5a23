"""Free TCP ports for servers that start later."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST, _LAST = 11_000, 32_000
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a loopback port that is still free when the server starts.

    The kernel may assign a port of its ephemeral range to another process before the server binds
    it, so the returned port is below that range. An abstract socket, held until this process ends,
    reserves the port among callers of this function.
    """
    kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    last = kernels if kernels > 2 * _FIRST else _LAST
    while True:
        port = random.randrange(_FIRST, last)
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as trial:
            try:
                claim.bind(f"\0nodesweep-port-{port}")
                trial.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
