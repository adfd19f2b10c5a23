"""The Elastic Fabric Adapter: its settings, who sets them, and mpirun's arguments for them.

Sources: sagemaker-training 5.1.4 (lists of instance types, exports of its runners), AWS developer
guide, "Run a distributed model parallel training job" (the three settings), libfabric prov/efa (a
process that requests RDMA read from an adapter without it is aborted).
"""

from __future__ import annotations

from nodesweep.configs.catalogue import InstanceType

PROVIDER, DEVICE_RDMA, FORK_SAFE = "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "RDMAV_FORK_SAFE"
TOOLKIT_EFA_TYPES = frozenset(
    {"ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge",
     "ml.p4de.24xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.trn1.32xlarge",
     "ml.p6e-gb200.36xlarge"}
)  # fmt: skip
"""Types for which sagemaker-training 5.1.4 exports FI_PROVIDER=efa (SM_EFA_NCCL_INSTANCES)."""
_RDMA_FAMILIES = frozenset({"p4d", "p4de", "p5", "p5e", "p5en", "trn1", "trn1n"})
_NO_RDMA_FAMILIES = frozenset({"p3dn", "g4dn", "g5", "c5n"})


def has_device_rdma(instance: InstanceType) -> bool | None:
    """Return True if the adapter can read device memory over RDMA, or None if unknown.

    The adapters of p3dn, g4dn, g5 and c5n cannot.
    """
    if instance.efa is False or instance.family in _NO_RDMA_FAMILIES:
        return False
    return True if instance.efa and instance.family in _RDMA_FAMILIES else None


def efa_settings(instance: InstanceType) -> dict[str, str]:
    """Return the environment that a rank on this type needs, or {} if it has no known adapter.

    RDMA is requested only if the adapter is known to support it. If the variable is unset,
    libfabric uses RDMA if it is available (fi_efa(7)).
    """
    if not instance.efa:
        return {}
    rdma = {DEVICE_RDMA: "1"} if has_device_rdma(instance) else {}
    return {PROVIDER: "efa", **rdma, FORK_SAFE: "1"}


def mpi_options(custom: str, efa_flags: bool, instance: InstanceType) -> str:
    """Return the user's mpirun arguments, followed by `-x NAME=value` per missing EFA setting."""
    given = {argument.partition("=")[0] for argument in custom.split()}
    settings = efa_settings(instance) if efa_flags else {}
    return " ".join(
        [custom, *(f"-x {name}={value}" for name, value in settings.items() if name not in given)]
    ).strip()
