"""The cluster and this process's place in it, from SageMaker's and the launcher's variables.

plain     one process per node; nodes are SM_HOSTS in sorted order
torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
mpi       OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
          (with mpi, SM_CURRENT_HOST is the master on every rank)
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.errors import UserError

DEFAULT_MASTER_PORT = 7777  # the SageMaker PyTorch toolkit's default


@dataclass(frozen=True)
class Cluster:
    """The cluster and this process's place in it."""

    launcher: str  # plain | torchrun | mpi
    nodes: int
    node_rank: int
    processes_per_node: int
    local_rank: int
    current_host: str
    master_address: str
    master_port: int

    @property
    def world_size(self) -> int:
        """Number of processes of the job."""
        return self.nodes * self.processes_per_node

    @property
    def rank(self) -> int:
        """Global rank; ranks are numbered node by node."""
        return self.node_rank * self.processes_per_node + self.local_rank


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster:
    """Return the cluster, whichever launcher started this process.

    Raises:
        UserError: The variables are missing, invalid, or contradictory.
    """
    hosts = _hosts(environment)
    current_host = environment.get("SM_CURRENT_HOST", hosts[0])
    address = environment.get("MASTER_ADDR", hosts[0])
    port = _integer(environment, "MASTER_PORT", DEFAULT_MASTER_PORT)
    if "OMPI_COMM_WORLD_RANK" in environment:
        prefix = "OMPI_COMM_WORLD_"
        rank, size, local_rank, local_size = (
            prefix + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        )
        position = _positions(environment, rank, size, local_rank, local_size, len(hosts))
        if position[0] > 1 and not {"MASTER_ADDR", "SM_HOSTS"} & environment.keys():
            raise UserError(
                "mpirun started ranks on several nodes, but neither MASTER_ADDR nor SM_HOSTS is set"
                " in this rank: add `-x MASTER_ADDR -x MASTER_PORT` to custom_mpi_options"
            )
        return Cluster("mpi", *position, current_host, address, port)
    if "RANK" in environment and "WORLD_SIZE" in environment:
        position = _positions(
            environment, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", len(hosts)
        )
        return Cluster("torchrun", *position, current_host, address, port)
    if current_host not in hosts:
        raise UserError(
            f"SM_CURRENT_HOST is {current_host!r}, which is not one of SM_HOSTS {hosts}"
        )
    return Cluster(
        "plain", len(hosts), hosts.index(current_host), 1, 0, current_host, address, port
    )


def network_interface(
    cluster: Cluster, environment: Mapping[str, str], existing: Sequence[str]
) -> str | None:
    """Return the network interface for gloo, or None to let it choose.

    By default gloo uses the address that the host name resolves to, which peers may be unable to
    reach; it can be given an interface but not an address. Nodes on 127.0.x.y share `lo`, which
    serves all of 127/8.
    """
    if "GLOO_SOCKET_IFNAME" in environment:
        return environment["GLOO_SOCKET_IFNAME"]
    if _is_loopback(cluster.master_address) and "lo" in existing:
        return "lo"
    named = environment.get("SM_NETWORK_INTERFACE_NAME")
    return named if named in existing else None


def _hosts(environment: Mapping[str, str]) -> list[str]:
    text = environment.get("SM_HOSTS")
    if text is None:
        return ["localhost"]
    try:
        hosts = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"SM_HOSTS is {text!r}, expected a JSON list of host names") from error
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise UserError(f"SM_HOSTS is {text!r}, expected a JSON list of one or more host names")
    return sorted(hosts)


def _positions(
    environment: Mapping[str, str],
    rank: str,
    size: str,
    local_rank: str,
    local_size: str,
    hosts: int,
) -> tuple[int, int, int, int]:
    """Return (nodes, node rank, processes per node, local rank).

    Raises:
        UserError: Ranks are not numbered node by node, or nodes have different process counts.
    """
    world_size, local = _integer(environment, size, 1), _integer(environment, local_rank, 0)
    # Some launchers do not set the processes per node, which are the same on every node.
    processes = _integer(
        environment, local_size, world_size // hosts if world_size % hosts == 0 else 1
    )
    global_rank = _integer(environment, rank, 0)
    if processes < 1 or world_size % processes or global_rank % processes != local:
        raise UserError(
            f"{rank}={global_rank}, {size}={world_size}, {local_rank}={local},"
            f" {local_size}={processes}; expected the same number of processes on every node, with"
            " ranks numbered node by node"
        )
    return world_size // processes, global_rank // processes, processes, local


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} is {text!r}, expected a whole number") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False  # not resolvable yet; the launcher's own wait has a better message
