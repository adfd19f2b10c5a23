"""A private network for a job: a switch linked to every node, in namespaces held by one process.

Its links, addresses and rules do not exist in this machine's network. Any number of jobs and
platforms can therefore use the same names and addresses simultaneously, only nodes of the same job
reach each other, and everything disappears with the process. Outbound traffic goes through
slirp4netns, which turns it into ordinary sockets of this machine and accepts nothing inbound.
Loopback ports in the nodes' environment variables are relayed to the nodes' loopback
(engine/host/relay.py). This module uses only the standard library because the job supervisor
creates the switch. `main` tests whether this machine allows a switch.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypedDict

from sagemaker_emulator.engine.host.link import (
    DEADLINE_SECONDS,
    INTERFACE,
    LinkError,
    LinkLimits,
    call,
    make_network,
    network_file,
)
from sagemaker_emulator.engine.host.link import PROGRAMS as LINK_PROGRAMS
from sagemaker_emulator.engine.host.relay import Relay, enter, inside

PROGRAMS = (*LINK_PROGRAMS, "slirp4netns")
SUBNET, _SUBNET_BITS = "198.18.0.0/16", 16
"""Reserved for network benchmarks (RFC 2544), so it does not hide a real network."""
_GATEWAY, NAME_SERVER = "198.18.0.2", "198.18.0.3"  # slirp4netns's addresses in this subnet
_PR_SET_PDEATHSIG = 1
_TRIAL_BYTES = 100_000


class SwitchPlan(TypedDict):
    """Describes the network that the supervisor creates for the nodes of a job."""

    addresses: dict[str, str]  # by host
    bits_per_second: int
    delay_microseconds: int  # from one node to another; 0 for no delay
    ports: list[int]  # loopback ports of this machine to relay to each node's loopback
    environment: dict[str, str]  # of slirp4netns


def node_address(number: int) -> str:
    """Return the address of node `number` (from 1)."""
    return f"198.18.{1 + (number - 1) // 250}.{1 + (number - 1) % 250}"


class Switch:
    """A context manager for the network of a job's nodes."""

    def __init__(self, plan: SwitchPlan) -> None:
        self._plan = plan
        self._limits = LinkLimits(plan["bits_per_second"], plan["delay_microseconds"])
        self._open = contextlib.ExitStack()
        self._network_by_host: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Create the network.

        Raises:
            LinkError: If this machine refuses.
        """
        try:
            self._make()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def enter(self, host: str) -> None:
        """Move this thread, which will become the node, into the node's network."""
        enter(self._network_by_host[host])

    def network(self, host: str) -> Path:
        """Return the path of a node's network namespace."""
        return network_file(self._network_by_host[host])

    def _make(self) -> None:
        switch = self._new_network()
        for host in self._plan["addresses"]:
            self._network_by_host[host] = self._new_network()
        call(network_file(switch), "ip", ["link add switch type bridge", "link set switch up"])
        plugs = [
            f"link add port{number} type veth peer name {INTERFACE} netns {network_file(network)}"
            for number, network in enumerate(self._network_by_host.values(), 1)
        ]
        ports = [f"port{number}" for number in range(1, len(plugs) + 1)]
        plugs += [f"link set {port} master switch up" for port in ports]
        call(network_file(switch), "ip", plugs)
        limits = [line for port in ports for line in self._limits.to_node(port)]
        call(network_file(switch), "tc", limits)
        for host in self._network_by_host:
            self._set_up_node(self.network(host), self._plan["addresses"][host])
        self._connect_to_host(network_file(switch))

    def _set_up_node(self, network: Path, address: str) -> None:
        lines = [
            "link set lo up",
            # No IPv6 address, since programs that use the first address of an interface would
            # rendezvous on it.
            f"link set {INTERFACE} addrgenmode none",
            f"link set {INTERFACE} up",
            f"address add {address}/{_SUBNET_BITS} dev {INTERFACE}",
            f"route add default via {_GATEWAY}",
        ]
        call(network, "ip", lines)
        call(network, "tc", self._limits.from_node(INTERFACE))
        for port in self._plan["ports"]:
            self._open.callback(Relay(network, port).close)

    def _connect_to_host(self, switch: Path) -> None:
        ready, ready_end = os.pipe()
        with open(ready, "rb", buffering=0) as is_ready:
            try:
                helper = subprocess.Popen(
                    [
                        *("slirp4netns", "--disable-host-loopback", f"--cidr={SUBNET}"),
                        *("--netns-type=path", f"--ready-fd={ready_end}", str(switch), "tap0"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": os.environ.get("PATH", os.defpath), **self._plan["environment"]},
                    pass_fds=[ready_end],
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise LinkError(f"slirp4netns: {error}") from error
            finally:
                os.close(ready_end)
            self._open.callback(_end, helper)
            # The pipe also becomes readable (at EOF) if slirp4netns ends.
            if not select.select([is_ready], [], [], DEADLINE_SECONDS)[0] or not is_ready.read(1):
                raise LinkError("slirp4netns did not start: check that /dev/net/tun exists")
        call(switch, "ip", ["link set tap0 master switch up"])

    def _new_network(self) -> int:
        network = make_network()
        self._open.callback(os.close, network)
        return network


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEADLINE_SECONDS)


def problem(plan: SwitchPlan) -> str | None:
    """Return why two nodes cannot communicate over such a network here, or None if they can."""
    first, second = plan["addresses"]
    try:
        with Switch(plan) as switch:
            server = inside(switch.network(first), lambda: _listener(plan["addresses"][first]))
            with server, inside(switch.network(second), lambda: _connected(server)) as client:
                server.settimeout(DEADLINE_SECONDS)
                peer, _ = server.accept()
                with peer:
                    return _carries(client, peer)
    except OSError as error:
        return str(error)


def _listener(address: str) -> socket.socket:
    return socket.create_server((address, 0))


def _connected(server: socket.socket) -> socket.socket:
    return socket.create_connection(server.getsockname(), timeout=DEADLINE_SECONDS)


def _carries(client: socket.socket, peer: socket.socket) -> str | None:
    peer.settimeout(DEADLINE_SECONDS)
    client.sendall(bytes(_TRIAL_BYTES))
    client.shutdown(socket.SHUT_WR)
    came = 0
    while data := peer.recv(1 << 16):
        came += len(data)
    return None if came == _TRIAL_BYTES else "bytes were lost on the way"


def main(write: Callable[[str], object] = sys.stdout.write) -> None:
    """Write, as JSON, why this machine cannot create a network and why it cannot delay packets.

    A reason is null if the machine can.
    """
    plan: SwitchPlan = {
        "addresses": {host: node_address(number) for number, host in enumerate("ab", 1)},
        "bits_per_second": 10**9,
        "delay_microseconds": 50,
        "ports": [],
        "environment": {},
    }
    with_delay = problem(plan)
    without = problem({**plan, "delay_microseconds": 0}) if with_delay else None
    write(json.dumps([without, None if without else with_delay]))


if __name__ == "__main__":
    main()
