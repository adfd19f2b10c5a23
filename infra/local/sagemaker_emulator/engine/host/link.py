"""Limits the rate of a node's link and delays its packets with the kernel's tbf and netem.

This module uses only the standard library because the job supervisor imports it through
engine/host/switch.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sagemaker_emulator.engine.host.relay import CLONE_NEWNET, in_thread

INTERFACE = "eth0"
PROGRAMS = ("ip", "tc", "nsenter")
OWN_NETWORK = Path("/proc/self/ns/net")
DEADLINE_SECONDS = 30.0
_ETHERNET_HEADER_BYTES = 14
_BURST_SECONDS = 0.001
_LEAST_BURST_FRAMES = 2
_QUEUE_BYTES = 32 << 20
"""Enough for the TCP windows of several peers, so that a link drops no packets."""
_DELAY_PACKETS = 100_000


class LinkError(OSError):
    """A link cannot be created or limited on this machine, for the reason in the message."""


class LinkLimits(NamedTuple):
    """The rate of a link in each direction and the delay between two nodes."""

    bits_per_second: int
    delay_microseconds: int
    """0 for no delay."""
    mtu_bytes: int = 1500

    def from_node(self, device: str) -> list[str]:
        """Return the tc commands that limit the rate at the node's end of its link."""
        return [f"qdisc add dev {device} root {self._rate()}"]

    def to_node(self, device: str) -> list[str]:
        """Return the tc commands that limit the rate and add the delay at the other end."""
        if not self.delay_microseconds:
            return self.from_node(device)
        delay = f"netem delay {self.delay_microseconds}us limit {_DELAY_PACKETS}"
        return [
            f"qdisc add dev {device} root handle 1: {delay}",
            f"qdisc add dev {device} parent 1:1 handle 10: {self._rate()}",
        ]

    def _rate(self) -> str:
        # The burst is the amount that the link carries in 1 ms, since a larger burst would let
        # short messages exceed the rate. tbf drops frames larger than the burst, hence the minimum.
        least_bytes = _LEAST_BURST_FRAMES * (self.mtu_bytes + _ETHERNET_HEADER_BYTES)
        burst_bytes = max(least_bytes, int(self.bits_per_second / 8 * _BURST_SECONDS))
        return f"tbf rate {self.bits_per_second}bit burst {burst_bytes} limit {_QUEUE_BYTES}"


def limit_container(network: Path, limits: LinkLimits) -> None:
    """Limit the link between a container and this machine's network in both directions.

    The limits disappear when the container does.

    Args:
        network: The file of the container's network namespace.
        limits: Rate and delay. The MTU is ignored in favor of the link's MTU, which podman copies
         from this machine's default route (9001 on EC2).

    Raises:
        LinkError: If this machine refuses, or if the container's eth0 is not one end of a veth pair
         whose other end is in this machine's network.
    """
    inner = _shown(network, INTERFACE)
    try:
        device = socket.if_indextoname(inner.get("link_index", 0))
    except OSError as error:
        raise LinkError(
            f"the other end of a container's {INTERFACE} is not in this machine's network"
        ) from error
    outer = _shown(OWN_NETWORK, device)
    # If the other end is in a third namespace, its index can match an unrelated interface here.
    if (outer.get("linkinfo", {}).get("info_kind"), outer.get("link_index")) != (
        "veth",
        inner["ifindex"],
    ):
        raise LinkError(f"{device} is not the other end of a container's {INTERFACE}")
    limits = limits._replace(mtu_bytes=inner["mtu"])
    call(network, "tc", limits.from_node(INTERFACE))
    call(OWN_NETWORK, "tc", limits.to_node(device))


def _shown(network: Path, device: str) -> dict[str, Any]:
    output = call(network, "ip", [f"link show dev {device}"], "-json", "-details")
    found: dict[str, Any] = json.loads(output)[0]
    return found


def make_network() -> int:
    """Create a network namespace that exists until the returned file descriptor is closed.

    Raises:
        LinkError: If the kernel refuses.
    """
    return in_thread(_new_network)


def _new_network() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise LinkError(f"can't create a network namespace: {os.strerror(ctypes.get_errno())}")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def network_file(network: int) -> Path:
    """Return the path of a namespace from a file descriptor that this process holds open."""
    return Path(f"/proc/{os.getpid()}/fd/{network}")


def call(network: Path, program: str, lines: Sequence[str], *options: str) -> str:
    """Run a batch of `ip` or `tc` commands inside a network and return the output.

    Raises:
        LinkError: If a command fails.
    """
    try:
        done = subprocess.run(
            ["nsenter", f"--net={network}", program, *options, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LinkError(f"{program}: {error}") from error
    if done.returncode != 0:
        message = done.stderr.strip().partition("\n")[0].removeprefix("Error: ").rstrip(".")
        raise LinkError(f"{program}: {message or f'exit code {done.returncode}'}")
    return done.stdout


def limit_problems() -> tuple[str | None, str | None]:
    """Return why links cannot be limited and why packets cannot be delayed on this machine.

    A reason is None if a test on a link in a new network succeeded.
    """
    with_delay = _limit_problem(LinkLimits(10**9, 50))
    without = _limit_problem(LinkLimits(10**9, 0)) if with_delay else None
    return without, None if without else with_delay


def _limit_problem(limits: LinkLimits) -> str | None:
    try:
        network = make_network()
    except OSError as error:
        return str(error)
    try:
        call(network_file(network), "ip", ["link add one type veth peer name other"])
        call(network_file(network), "tc", [*limits.from_node("one"), *limits.to_node("other")])
    except OSError as error:
        return str(error)
    finally:
        os.close(network)
    return None
