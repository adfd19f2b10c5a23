"""A job's own network: a switch linked to each node, in namespaces that only a process holds.

This machine's network sees no link, address or rule of it, so any number of jobs and platforms use
the same names and addresses at once, only the job's own nodes reach each other, and everything
disappears with the process that created the switch. Outbound traffic goes through slirp4netns,
which turns it into ordinary sockets of this machine and accepts nothing inbound; loopback ports in
the nodes' environments are relayed to their own loopback (infra/local/engine/host/relay.py).
Standard library only: the job supervisor creates the switch; `main` tests whether this machine
allows one.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypedDict

from nodesweep.infra.local.engine.host.relay import CLONE_NEWNET, Relay, enter, in_thread, inside

PROGRAMS = ("ip", "tc", "slirp4netns")
INTERFACE = "eth0"
SUBNET, _SUBNET_BITS = "198.18.0.0/16", 16
"""Reserved for network benchmarks (RFC 2544), so it hides nobody's real network."""
_GATEWAY, NAME_SERVER = "198.18.0.2", "198.18.0.3"  # slirp4netns's, in this subnet
_PR_SET_PDEATHSIG = 1
_DEADLINE_SECONDS = 30.0
_BURST_SECONDS = 0.001
_LEAST_BURST_BYTES = 3_000
_QUEUE_BYTES = 32 << 20
"""Enough for several peers' TCP windows: this switch drops nothing."""
_DELAY_PACKETS = 100_000
_TRIAL_BYTES = 100_000


class SwitchPlan(TypedDict):
    """The network of a job's nodes, as the supervisor creates it."""

    addresses: dict[str, str]  # by host
    bits_per_second: int
    delay_microseconds: int  # from one node to another; 0: none
    ports: list[int]  # of this machine's loopback, relayed to each node's own
    environment: dict[str, str]  # of its helper


class SwitchError(OSError):
    """This machine refuses to create the network; the message gives the reason."""


def node_address(number: int) -> str:
    """Return the address of node `number`, from 1."""
    return f"198.18.{1 + (number - 1) // 250}.{1 + (number - 1) % 250}"


class Switch:
    """A context manager for the network of a job's nodes."""

    def __init__(self, plan: SwitchPlan) -> None:
        self._plan = plan
        self._open = contextlib.ExitStack()
        self._network_by_host: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Create the network.

        Raises:
            SwitchError: If this machine refuses.
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
        """Return the file of a node's network namespace."""
        return _file(self._network_by_host[host])

    def _make(self) -> None:
        switch = self._new_network()
        for host in self._plan["addresses"]:
            self._network_by_host[host] = self._new_network()
        _call(switch, "ip", ["link add switch type bridge", "link set switch up"])
        plugs = [
            f"link add port{number} type veth peer name {INTERFACE} netns {_file(network)}"
            for number, network in enumerate(self._network_by_host.values(), 1)
        ]
        ports = [f"port{number}" for number in range(1, len(plugs) + 1)]
        _call(switch, "ip", [*plugs, *(f"link set {port} master switch up" for port in ports)])
        _call(switch, "tc", [line for port in ports for line in self._towards_a_node(port)])
        for host, network in self._network_by_host.items():
            self._set_up_node(network, self._plan["addresses"][host])
        self._connect_to_host(switch)

    def _set_up_node(self, network: int, address: str) -> None:
        lines = [
            "link set lo up",
            # No IPv6 address: programs that use an interface's first address would rendezvous on
            # it.
            f"link set {INTERFACE} addrgenmode none",
            f"link set {INTERFACE} up",
            f"address add {address}/{_SUBNET_BITS} dev {INTERFACE}",
            f"route add default via {_GATEWAY}",
        ]
        _call(network, "ip", lines)
        _call(network, "tc", [f"qdisc add dev {INTERFACE} root {self._rate()}"])
        for port in self._plan["ports"]:
            self._open.callback(Relay(_file(network), port).close)

    def _rate(self) -> str:
        bits = self._plan["bits_per_second"]
        # What the link carries in 1 ms: a larger burst would let short messages exceed the rate.
        burst_bytes = max(_LEAST_BURST_BYTES, int(bits / 8 * _BURST_SECONDS))
        return f"tbf rate {bits}bit burst {burst_bytes} limit {_QUEUE_BYTES}"

    def _towards_a_node(self, port: str) -> Iterator[str]:
        delay = self._plan["delay_microseconds"]
        if not delay:
            yield f"qdisc add dev {port} root {self._rate()}"
            return
        yield f"qdisc add dev {port} root handle 1: netem delay {delay}us limit {_DELAY_PACKETS}"
        yield f"qdisc add dev {port} parent 1:1 handle 10: {self._rate()}"

    def _connect_to_host(self, switch: int) -> None:
        ready, said = os.pipe()
        with open(ready, "rb", buffering=0) as is_ready:
            try:
                helper = subprocess.Popen(
                    [
                        *("slirp4netns", "--disable-host-loopback", f"--cidr={SUBNET}"),
                        *("--netns-type=path", f"--ready-fd={said}", str(_file(switch)), "tap0"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": os.environ.get("PATH", os.defpath), **self._plan["environment"]},
                    pass_fds=[said],
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise SwitchError(f"slirp4netns: {error}") from error
            finally:
                os.close(said)
            self._open.callback(_end, helper)
            # also readable at end of file
            if not select.select([is_ready], [], [], _DEADLINE_SECONDS)[0] or not is_ready.read(1):
                raise SwitchError("slirp4netns did not start; is there a /dev/net/tun?")
        _call(switch, "ip", ["link set tap0 master switch up"])

    def _new_network(self) -> int:
        network = in_thread(_make_network)
        self._open.callback(os.close, network)
        return network


def _make_network() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise SwitchError(f"a network namespace: {os.strerror(ctypes.get_errno())}")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _file(network: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{network}")


def _call(network: int, program: str, lines: Sequence[str]) -> None:
    """Run `ip` or `tc` on some lines inside a network."""
    try:
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            preexec_fn=lambda: enter(network),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SwitchError(f"{program}: {error}") from error
    if done.returncode != 0:
        output = done.stderr.strip().partition("\n")[0].removeprefix("Error: ").rstrip(".")
        raise SwitchError(f"{program}: {output or f'exit code {done.returncode}'}")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_DEADLINE_SECONDS)


def problem(plan: SwitchPlan) -> str | None:
    """Return why two nodes cannot have such a network here, or None if bytes were sent over it."""
    first, second = plan["addresses"]
    try:
        with Switch(plan) as switch:
            server = inside(switch.network(first), lambda: _listener(plan["addresses"][first]))
            with server, inside(switch.network(second), lambda: _connected(server)) as client:
                server.settimeout(_DEADLINE_SECONDS)
                peer, _ = server.accept()
                with peer:
                    return _carries(client, peer)
    except OSError as error:
        return str(error)


def _listener(address: str) -> socket.socket:
    return socket.create_server((address, 0))


def _connected(server: socket.socket) -> socket.socket:
    return socket.create_connection(server.getsockname(), timeout=_DEADLINE_SECONDS)


def _carries(client: socket.socket, peer: socket.socket) -> str | None:
    peer.settimeout(_DEADLINE_SECONDS)
    client.sendall(bytes(_TRIAL_BYTES))
    client.shutdown(socket.SHUT_WR)
    came = 0
    while data := peer.recv(1 << 16):
        came += len(data)
    return None if came == _TRIAL_BYTES else "bytes were lost on the way"


def main(write: Callable[[str], object] = sys.stdout.write) -> None:
    """Write, as JSON, the reasons why this machine cannot create a job's network or delay packets.

    Each reason is null if it can.
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
