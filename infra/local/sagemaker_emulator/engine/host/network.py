"""Networks that connect the nodes of a job.

If this machine allows it, each node has a network namespace, whose links to the job's other nodes
have the rate and latency of their instance type. Otherwise, nodes use loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sagemaker_emulator.engine.host import link, switch
from sagemaker_emulator.engine.host.capacity import LINK_BY_INSTANCE_TYPE
from sagemaker_emulator.engine.host.link import LinkLimits
from sagemaker_emulator.engine.host.switch import SwitchPlan
from sagemaker_emulator.environment import IMPORT_ROOT

LOOPBACK_INTERFACE = "lo"
_TRIAL = (
    f"import sys; sys.path.append({IMPORT_ROOT!r}); "
    "from sagemaker_emulator.engine.host.switch import main; main()"
)
_TRIAL_SECONDS = 40.0
"""Time limit of a test, which takes 0.2 s on an idle machine. A server has a minute to start."""
_LOOPBACK_URL = re.compile(
    r"https?://(?:[^\s/@]*@)?(?:127\.0\.0\.1|localhost|0\.0\.0\.0):(\d{1,5})\b"
)
_HIGHEST_PORT = 65_535


class Network(Protocol):
    """A way to connect the nodes of a job."""

    @property
    def interface(self) -> str:
        """The name of the nodes' network interface in resourceconfig.json."""

    @property
    def name_server(self) -> str | None:
        """The nodes' DNS server, or None to use this machine's."""

    def address(self, number: int) -> str:
        """Return the address of node `number` (from 1) of a job."""

    def describe(self, instance_type: str) -> str:
        """Return a short description of the network, for messages and reports."""

    def plan(
        self,
        instance_type: str,
        address_by_host: Mapping[str, str],
        environments: Iterable[Mapping[str, str]],
        mark: Mapping[str, str],
    ) -> SwitchPlan | None:
        """Return the plan of the network that the supervisor creates for a job; None without one.

        Args:
            instance_type: The instance type, which determines the rate and latency.
            address_by_host: The nodes' addresses.
            environments: The nodes' environment variables.
            mark: Environment variables of the network's helper process.
        """


@dataclass(frozen=True)
class Loopback:
    """Nodes share this machine's network and communicate over loopback."""

    block: int
    """The third byte of node addresses, 1 to 250, unique to a platform on this machine."""
    reason: str

    interface = LOOPBACK_INTERFACE
    name_server = None

    def address(self, number: int) -> str:
        """Return the address of node `number` (from 1) of a job."""
        return f"127.0.{self.block}.{number}"

    def describe(self, instance_type: str) -> str:
        """Return a description that includes why nodes have no separate networks."""
        return f"over loopback ({self.reason})"

    def plan(
        self,
        instance_type: str,
        address_by_host: Mapping[str, str],
        environments: Iterable[Mapping[str, str]],
        mark: Mapping[str, str],
    ) -> None:
        """Return None, since no network is created."""


@dataclass(frozen=True)
class OwnNetworks:
    """Each node has a separate network, linked only to the other nodes of its job.

    See engine/host/switch.py.
    """

    delay_problem: str | None = None
    """Why packets cannot be delayed here; None if they can."""

    interface = link.INTERFACE
    name_server = switch.NAME_SERVER

    def address(self, number: int) -> str:
        """Return the address of node `number`, which is the same in every job."""
        return switch.node_address(number)

    def describe(self, instance_type: str) -> str:
        """Return text such as "1 Gbit/s and 0.05 ms between nodes in networks of their own"."""
        return _described(instance_type, "nodes in networks of their own", self.delay_problem)

    def plan(
        self,
        instance_type: str,
        address_by_host: Mapping[str, str],
        environments: Iterable[Mapping[str, str]],
        mark: Mapping[str, str],
    ) -> SwitchPlan | None:
        """Return the plan of the network that the supervisor creates for a job.

        On this machine's loopback, nodes reach only the ports in the URLs of their environment
        variables: the platform and a configured proxy, package index or tracking server.
        """
        limits = _limits(instance_type, self.delay_problem)
        return {
            "addresses": dict(address_by_host),
            "bits_per_second": limits.bits_per_second,
            "delay_microseconds": limits.delay_microseconds,
            "ports": loopback_ports(environments),
            "environment": dict(mark),
        }


@dataclass(frozen=True)
class ContainerLinks:
    """Limits the links of containers in a network that podman or docker creates."""

    problem: str | None
    """Why the links cannot be limited here; None if they can."""
    delay_problem: str | None = None
    """Why packets cannot be delayed here; None if they can."""

    @classmethod
    def find(cls) -> ContainerLinks:
        """Return the limits that work on this machine, tested on a link."""
        missing = _missing(link.PROGRAMS)
        return cls(f"limits need {missing}") if missing else cls(*link.limit_problems())

    def describe(self, instance_type: str) -> str:
        """Return text such as "1 Gbit/s and 0.05 ms between nodes"."""
        if self.problem is not None:
            return f"no limit between nodes ({self.problem})"
        return _described(instance_type, "nodes", self.delay_problem)

    def limit(self, instance_type: str, pids: Iterable[int]) -> None:
        """Limit the links of the containers whose first processes are `pids`, if this machine can.

        Raises:
            LinkError: If this machine refuses.
        """
        if self.problem is None:
            limits = _limits(instance_type, self.delay_problem)
            for pid in pids:
                link.limit_container(Path(f"/proc/{pid}/ns/net"), limits)


def _limits(instance_type: str, delay_problem: str | None) -> LinkLimits:
    of_type = LINK_BY_INSTANCE_TYPE[instance_type]
    delay_microseconds = round(of_type.latency_milliseconds * 1000)
    return LinkLimits(
        bits_per_second=round(of_type.gbit_per_second * 1e9),
        delay_microseconds=delay_microseconds if delay_problem is None else 0,
    )


def _described(instance_type: str, between: str, delay_problem: str | None) -> str:
    of_type = LINK_BY_INSTANCE_TYPE[instance_type]
    rate = f"{of_type.gbit_per_second:g} Gbit/s"
    if delay_problem is None:
        return f"{rate} and {of_type.latency_milliseconds:g} ms between {between}"
    return f"{rate} between {between} (without a delay: {delay_problem})"


def _missing(programs: Iterable[str]) -> str:
    return ", ".join(program for program in programs if shutil.which(program) is None)


def find_network(block: int, containment_problem: str | None) -> Network:
    """Return the best network that works on this machine, tested by creating one.

    Args:
        block: The address block for Loopback.
        containment_problem: Why nodes have no namespaces, or None if they have.
    """
    missing = _missing(switch.PROGRAMS)
    if os.geteuid() != 0:
        return Loopback(block, "networks of their own need root")
    if containment_problem is not None:
        return Loopback(block, containment_problem)
    if missing:
        return Loopback(block, f"networks of their own need {missing}")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=True,
        )
        problem, delay_problem = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        problem, delay_problem = f"a test took longer than {_TRIAL_SECONDS:g} s", None
    except subprocess.CalledProcessError as error:
        output = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        problem, delay_problem = f"a test failed: {output[0]}", None
    except (OSError, ValueError) as error:
        problem, delay_problem = f"a test failed: {error}", None
    return OwnNetworks(delay_problem) if problem is None else Loopback(block, problem)


def loopback_ports(environments: Iterable[Mapping[str, str]]) -> list[int]:
    """Return the sorted loopback ports in the HTTP and HTTPS URLs of environment variables."""
    found = {
        int(port)
        for environment in environments
        for value in environment.values()
        for port in _LOOPBACK_URL.findall(value)
    }
    return sorted(port for port in found if 0 < port <= _HIGHEST_PORT)


def resolver_text(name_server: str, text: str) -> str:
    """Return the resolv.conf `text` with `name_server` as its only name server."""
    others = [line for line in text.splitlines() if line.split()[:1] != ["nameserver"]]
    return "\n".join([f"nameserver {name_server}", *others]) + "\n"
