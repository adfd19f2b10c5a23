"""The process group, and Lightning's view of it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from nodesweep_clock import let_gloo_finish
from pytorch_lightning.plugins.environments import ClusterEnvironment

from training.cluster import Cluster, network_interface
from training.distributed.backends import load_library, xla_model
from training.errors import UserError


class SageMakerEnvironment(ClusterEnvironment):
    """Passes a `Cluster` to Lightning; the launcher has already started every process."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    @property
    def creates_processes_externally(self) -> bool:
        """Always True, so that Lightning does not start processes."""
        return True

    @property
    def main_address(self) -> str:
        """Host name or address of rank 0's node."""
        return self._cluster.master_address

    @property
    def main_port(self) -> int:
        """Port of the rendezvous."""
        return self._cluster.master_port

    @staticmethod
    def detect() -> bool:
        """Return True if SM_HOSTS is set, as on SageMaker."""
        return "SM_HOSTS" in os.environ

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._cluster.world_size

    def set_world_size(self, size: int) -> None:
        """Raise UserError unless Lightning computed the cluster's world size."""
        if size != self._cluster.world_size:
            raise UserError(
                f"Lightning computed a world size of {size}, but the cluster has"
                f" {self._cluster.world_size}"
            )

    def global_rank(self) -> int:
        """Return the global rank."""
        return self._cluster.rank

    def set_global_rank(self, rank: int) -> None:
        """Raise UserError unless Lightning computed this process's rank."""
        if rank != self._cluster.rank:
            raise UserError(
                f"Lightning computed rank {rank}, but this process has rank {self._cluster.rank}"
            )

    def local_rank(self) -> int:
        """Return the rank within the node."""
        return self._cluster.local_rank

    def node_rank(self) -> int:
        """Return the node's rank."""
        return self._cluster.node_rank


def join_process_group(cluster: Cluster, backend: str, timeout_seconds: float) -> None:
    """Join the process group, unless the world has one process.

    Args:
        cluster: The cluster and this process's place in it.
        backend: gloo, nccl, smddp, or xla.
        timeout_seconds: Deadline of joining and of every later collective.

    Raises:
        UserError: The node has fewer GPUs than processes, or the backend's library is missing.
    """
    if torch.cuda.is_available():
        devices = torch.cuda.device_count()
        if cluster.local_rank >= devices:
            raise UserError(
                f"local rank {cluster.local_rank} has no GPU: the node has {devices};"
                " start fewer processes"
            )
        torch.cuda.set_device(cluster.local_rank)
    if cluster.world_size == 1:
        return
    load_library(backend)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        cluster.master_address,
        str(cluster.master_port),
    )
    interface = network_interface(cluster, os.environ, [name for _, name in socket.if_nameindex()])
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    store = _listen_at_own_address(cluster, timeout_seconds)
    dist.init_process_group(
        backend,
        init_method="env://",
        world_size=cluster.world_size,
        rank=cluster.rank,
        timeout=timedelta(seconds=timeout_seconds),
    )
    del store  # env:// has joined the same server


def _listen_at_own_address(cluster: Cluster, timeout_seconds: float) -> dist.TCPStore | None:
    """Bind rank 0's TCPStore, which has no authentication, to the master's address only.

    Return None if that is not a literal address, since a host name may resolve differently on each
    node, or if torchrun's agent has its own store; env:// then starts the store on all interfaces.
    As with env://, `multi_tenant` lets stores of one process and port share a server.
    """
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if cluster.rank != 0 or is_agents or not _is_address(cluster.master_address):
        return None
    try:
        listening = socket.create_server((cluster.master_address, cluster.master_port))
    except OSError:  # not an address of this container, e.g. a forwarded one
        return None
    options = {
        "is_master": True,
        "timeout": timedelta(seconds=timeout_seconds),
        "wait_for_workers": False,
        "multi_tenant": True,
        "master_listen_fd": listening.fileno(),
    }
    address, port = cluster.master_address, cluster.master_port
    try:
        try:
            store = dist.TCPStore(address, port, cluster.world_size, **options)
        except NotImplementedError:  # the libuv server of PyTorch 2.4 accepts no socket
            options["use_libuv"] = False
            store = dist.TCPStore(address, port, cluster.world_size, **options)
    except TypeError:  # this PyTorch accepts no socket, so env:// starts its own store
        listening.close()
        return None
    listening.detach()  # the store closes it
    return store


def _is_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 4
    except ValueError:
        return False


def init_model_parallel() -> None:
    """Initialize SageMaker model parallelism 2.x, configured by SM_HP_MP_PARAMETERS."""
    load_library("smp")
    torch.sagemaker.init()


def barrier() -> None:
    """Wait for this accelerator's work, then for every rank."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(numbers: Sequence[float]) -> list[float]:
    """Return element-wise sums, the same on every rank."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=_device())
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor.tolist()


def gather_numbers(numbers: Sequence[float]) -> list[list[float]]:
    """Return every rank's list in rank order; all lists must have the same length."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=_device())
    if not dist.is_initialized():
        return [tensor.tolist()]
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return [other.tolist() for other in gathered]


def broadcast_bytes(content: bytes | None) -> bytes:
    """Return rank 0's bytes on every rank; the others pass None."""
    if not dist.is_initialized():
        return content or b""
    (size,) = gather_numbers([len(content or b"")])[0]
    tensor = torch.empty(int(size), dtype=torch.uint8)
    if content is not None:
        tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    tensor = tensor.to(_device())
    dist.broadcast(tensor, src=0)
    return tensor.cpu().numpy().tobytes()


def leave_process_group() -> None:
    """Close the process group, if any."""
    if dist.is_initialized():
        let_gloo_finish()
        dist.destroy_process_group()


def _device() -> torch.device:
    if dist.is_initialized() and dist.get_backend() == "xla":
        return xla_model().xla_device()
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
