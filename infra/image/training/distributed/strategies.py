"""Lightning's strategy for a cluster, a backend, and --strategy."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from training.cluster import Cluster
from training.distributed.backends import xla_model
from training.distributed.process_group import SageMakerEnvironment
from training.errors import UserError
from training.model.models import BasicBlock
from training.torch_versions import FSDP2, FSDP2_ON_CPUS, require

_HOOKS = {
    "fp16": (fp16_compress_hook, {("ddp", "gloo"), ("ddp", "nccl")}),
    "bf16": (bf16_compress_hook, {("ddp", "nccl")}),
}
"""DDP's hook for each --compress, and the strategies and backends that it works with.

PyTorch refuses bf16 without CUDA and NCCL.
"""


class CompressedDDPStrategy(DDPStrategy):
    """DDP that all-reduces 16-bit gradients, even on CPUs, where Lightning registers no hook."""

    def __init__(self, hook: Any, **options: Any) -> None:
        super().__init__(**options)
        self._hook = hook

    def configure_ddp(self) -> None:
        """Wrap the model, and register the hook."""
        super().configure_ddp()
        self.model.register_comm_hook(None, self._hook)


class XlaDDPStrategy(DDPStrategy):
    """DDP on an XLA device (Trainium): one device per process, one graph per step."""

    @property
    def root_device(self) -> torch.device:
        """The process's XLA device."""
        return xla_model().xla_device()

    def determine_ddp_device_ids(self) -> None:
        """Return None, because DDP's device_ids are for CUDA devices."""
        return None

    def optimizer_step(self, *arguments: Any, **options: Any) -> Any:
        """Step the optimizer, then end the XLA graph and execute it."""
        result = super().optimizer_step(*arguments, **options)
        xla_model().mark_step()
        return result


def build_strategy(
    kind: str, cluster: Cluster, backend: str, compress: str = "none"
) -> Strategy | str:
    """Return the Trainer's strategy.

    Args:
        kind: ddp, fsdp (PyTorch's FSDP2), or smp (FSDP1 under torch.sagemaker, already
            initialized).
        cluster: The cluster.
        backend: The process group's backend.
        compress: none, or the 16-bit format of the gradients that DDP sends.

    Raises:
        UserError: This PyTorch, the hardware, or the backend does not support the kind or the
            compression.
    """
    if compress != "none" and (kind, backend) not in _HOOKS[compress][1]:
        raise UserError(
            f"--compress {compress} does not work with --strategy {kind} and --backend {backend}:"
            f" use {'fp16' if (kind, backend) == ('ddp', 'gloo') else 'none'}"
        )
    if kind == "fsdp":
        require(FSDP2, "--strategy fsdp", "use ddp, or a container with a later PyTorch")
        if not torch.cuda.is_available():
            require(
                FSDP2_ON_CPUS,
                "--strategy fsdp without a GPU",
                "use ddp, or a container with a later PyTorch",
            )
    if kind == "smp" and not torch.cuda.is_available():
        raise UserError(
            "--strategy smp needs a GPU per process, but torch finds none here: use ddp or fsdp"
        )
    if kind != "ddp" and backend == "xla":
        raise UserError(f"--strategy {kind} does not work with --backend xla: use ddp")
    if cluster.world_size == 1:
        return "auto"  # a fair baseline: one device needs no gradient exchange
    environment = SageMakerEnvironment(cluster)
    if kind == "fsdp":
        sharded = ModelParallelStrategy(
            data_parallel_size=cluster.world_size,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=backend,
        )
        sharded.cluster_environment = environment
        return sharded
    if kind == "smp":
        return FSDPStrategy(
            cluster_environment=environment,
            process_group_backend=backend,
            auto_wrap_policy=size_based_auto_wrap_policy,
            state_dict_type="full",
        )
    options: dict[str, Any] = {
        "cluster_environment": environment,
        "process_group_backend": backend,
        "gradient_as_bucket_view": True,
    }
    if compress != "none":
        return CompressedDDPStrategy(_HOOKS[compress][0], **options)
    return (XlaDDPStrategy if backend == "xla" else DDPStrategy)(**options)


def shard(model: nn.Module, mesh: Any) -> None:
    """Shard parameters, gradients, and optimizer state over `mesh`, layer by layer (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.modules():
        if isinstance(layer, (BasicBlock, nn.Linear)):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
