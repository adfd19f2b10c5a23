"""How the nodes of a job are connected: by a network of their own with the rate and the delay of
their instance type, where this machine lets us make one, or over this machine's loopback.
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

from nodesweep.infra.local.engine.host import switch
from nodesweep.infra.local.engine.host.capacity import LINK_BY_INSTANCE_TYPE
from nodesweep.infra.local.engine.host.switch import SwitchPlan

LOOPBACK_INTERFACE = "lo"
_ROOT = Path(__file__).resolve().parents[4]
_TRIAL = (
    f"import sys; sys.path.append({str(_ROOT)!r}); "
    "from nodesweep.infra.local.engine.host.switch import main; main()"
)
_TRIAL_SECONDS = 40.0
"""A fifth of a second on a quiet machine; within the minute that a server has to start."""
_LOOPBACK_URL = re.compile(
    r"https?://(?:[^\s/@]*@)?(?:127\.0\.0\.1|localhost|0\.0\.0\.0):(\d{1,5})\b"
)
_HIGHEST_PORT = 65_535


class Network(Protocol):
    """How nodes are connected."""

    @property
    def interface(self) -> str:
        """The nodes' network interface, as resourceconfig.json names it."""

    @property
    def name_server(self) -> str | None:
        """Where nodes ask for the names of other machines; None: where this machine does."""

    def address(self, number: int) -> str:
        """Of a job's node `number`, from 1."""

    def in_words(self, instance_type: str) -> str:
        """One phrase for people and reports."""

    def plan(
        self,
        instance_type: str,
        address_by_host: Mapping[str, str],
        environments: Iterable[Mapping[str, str]],
        mark: Mapping[str, str],
    ) -> SwitchPlan | None:
        """Return the network that the supervisor makes for a job of these environments;
        None: nothing. `mark` is the environment of its helper.
        """


@dataclass(frozen=True)
class Loopback:
    """Nodes share this machine's network and meet on its loopback."""

    block: int
    """Two platforms on one machine have different ones, 1 to 250."""
    reason: str

    interface = LOOPBACK_INTERFACE
    name_server = None

    def address(self, number: int) -> str:
        """Of a job's node `number`, from 1."""
        return f"127.0.{self.block}.{number}"

    def in_words(self, instance_type: str) -> str:
        """Say why they have no network of their own."""
        return f"over loopback ({self.reason})"

    def plan(
        self,
        instance_type: str,
        address_by_host: Mapping[str, str],
        environments: Iterable[Mapping[str, str]],
        mark: Mapping[str, str],
    ) -> None:
        """Nothing is to be made."""


@dataclass(frozen=True)
class OwnNetworks:
    """Each node has a network of its own, cabled to those of its job's other nodes alone
    (infra/local/engine/host/switch.py).
    """

    delay_problem: str | None = None
    """Why packets can't be delayed here, None where they can."""

    interface = switch.INTERFACE
    name_server = switch.NAME_SERVER

    def address(self, number: int) -> str:
        """The same in every job: no network sees another's."""
        return switch.node_address(number)

    def in_words(self, instance_type: str) -> str:
        """ "1 Gbit/s and 0.05 ms between nodes in networks of their own"."""
        link = LINK_BY_INSTANCE_TYPE[instance_type]
        if self.delay_problem is None:
            delay = f" and {link.latency_milliseconds:g} ms"
            return f"{link.gbit_per_second:g} Gbit/s{delay} between nodes in networks of their own"
        without = f"without a delay: {self.delay_problem}"
        return f"{link.gbit_per_second:g} Gbit/s between nodes in networks of their own ({without})"

    def plan(
        self,
        instance_type: str,
        address_by_host: Mapping[str, str],
        environments: Iterable[Mapping[str, str]],
        mark: Mapping[str, str],
    ) -> SwitchPlan | None:
        """Return the network that the supervisor makes for a job of these environments.

        Of this machine's loopback nodes reach the ports of the URLs in them: the platform's, and
        those of a proxy, a package index or a tracking server that they are told of.
        """
        link = LINK_BY_INSTANCE_TYPE[instance_type]
        delay_microseconds = round(link.latency_milliseconds * 1000)
        return {
            "addresses": dict(address_by_host),
            "bits_per_second": round(link.gbit_per_second * 1e9),
            "delay_microseconds": delay_microseconds if self.delay_problem is None else 0,
            "ports": loopback_ports(environments),
            "environment": dict(mark),
        }


def find_network(block: int, containment_problem: str | None) -> Network:
    """The best that was seen to work here: a network is made and tried. `block` is that of
    Loopback; `containment_problem`: why nodes have no namespaces at all.
    """
    missing = [program for program in switch.PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0:
        return Loopback(block, "networks of their own need root")
    if containment_problem is not None:
        return Loopback(block, containment_problem)
    if missing:
        return Loopback(block, f"networks of their own need {', '.join(missing)}")
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
        problem, delay_problem = f"a trial took longer than {_TRIAL_SECONDS:g} s", None
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        problem, delay_problem = f"a trial failed: {error}", None
    return OwnNetworks(delay_problem) if problem is None else Loopback(block, problem)


def loopback_ports(environments: Iterable[Mapping[str, str]]) -> list[int]:
    """The ports of this machine's loopback in the http URLs of these variables, sorted."""
    found = {
        int(port)
        for environment in environments
        for value in environment.values()
        for port in _LOOPBACK_URL.findall(value)
    }
    return sorted(port for port in found if 0 < port <= _HIGHEST_PORT)


def resolver_text(name_server: str, text: str) -> str:
    """This machine's resolv.conf `text` with another name server."""
    others = [line for line in text.splitlines() if line.split()[:1] != ["nameserver"]]
    return "\n".join([f"nameserver {name_server}", *others]) + "\n"
