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
    """Tells Lightning what `Cluster` found; SageMaker has started every process already."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self._cluster.master_address

    @property
    def main_port(self) -> int:
        return self._cluster.master_port

    @staticmethod
    def detect() -> bool:
        return "SM_HOSTS" in os.environ

    def world_size(self) -> int:
        return self._cluster.world_size

    def set_world_size(self, size: int) -> None:
        if size != self._cluster.world_size:
            raise UserError(
                f"Lightning computed a world size of {size}, the cluster has"
                f" {self._cluster.world_size}"
            )

    def global_rank(self) -> int:
        return self._cluster.rank

    def set_global_rank(self, rank: int) -> None:
        if rank != self._cluster.rank:
            raise UserError(
                f"Lightning computed rank {rank}, this process has rank {self._cluster.rank}"
            )

    def local_rank(self) -> int:
        return self._cluster.local_rank

    def node_rank(self) -> int:
        return self._cluster.node_rank


def join_process_group(cluster: Cluster, backend: str, timeout_seconds: float) -> None:
    """Meet the other ranks; a world of one needs no group.
    Every later collective has the same deadline.
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
    """Have rank 0's store, which asks for no password, listen at the master's address alone, where
    that is a literal one; None where env:// has to start the store as it does, on all interfaces.

    A name may stand for another address on each node, so nothing is bound by one. torchrun's agent
    has a store of its own. `multi_tenant` is what env:// asks for too: stores of one process and
    port share their server.
    """
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if cluster.rank != 0 or is_agents or not _is_address(cluster.master_address):
        return None
    try:
        listening = socket.create_server((cluster.master_address, cluster.master_port))
    except OSError:  # an address of another interface than this container's: forwarded
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
        store = dist.TCPStore(address, port, cluster.world_size, **options)
    except TypeError:  # a release that takes no socket: env:// starts its own
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
    """SageMaker's model-parallel library 2.x, which takes its degrees from the request
    (SM_HP_MP_PARAMETERS).
    """
    load_library("smp")
    torch.sagemaker.init()


def barrier() -> None:
    """Wait for every rank, with the accelerator's own work done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(numbers: Sequence[float]) -> list[float]:
    """Element-wise sums, the same on every rank."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=_device())
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor.tolist()


def gather_numbers(numbers: Sequence[float]) -> list[list[float]]:
    """Every rank's list, in rank order; all lists have the same length."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=_device())
    if not dist.is_initialized():
        return [tensor.tolist()]
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return [other.tolist() for other in gathered]


def broadcast_bytes(content: bytes | None) -> bytes:
    """Rank 0's bytes, on every rank; the others give None."""
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
    """Close the group's connections, if there is one."""
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
