"""Addresses that listen on a port, according to the kernel."""

from __future__ import annotations

from pathlib import Path


def listening_addresses(port: int) -> set[str]:
    """Return the local addresses of TCP sockets listening on the port, in the kernel's format."""
    rows = [
        line.split()[1:4]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    local = [address.split(":") for address, _, state in rows if state == "0A"]
    return {address for address, number in local if int(number, 16) == port}
