"""Hyperparameters of each distribution kind, as SageMaker SDK 2.257.7 sends them.

tests/nodesweep/scaling/golden_requests has recordings of them.
"""

from __future__ import annotations

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.distribution import (
    Horovod,
    Mpi,
    NoDistribution,
    ParameterServer,
    PyTorchDdp,
    Smddp,
    SmpV1,
    SmpV2,
    TorchDistributed,
    Trainium,
)
from nodesweep.scaling.rules.distribution.efa import mpi_options
from nodesweep.scaling.rules.distribution.option import Value


def none(config: NoDistribution, instance: InstanceType) -> dict[str, Value]:
    """Return no hyperparameters."""
    return {}


def torchrun(config: TorchDistributed | Trainium, instance: InstanceType) -> dict[str, Value]:
    """Return the hyperparameters of torch_distributed and trainium."""
    sent: dict[str, Value] = {
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_instance_type": instance.instance_type,
    }
    if config.processes_per_node is not None:
        # sagemaker-training reads mpirun's key for every runner, even for torchrun.
        sent["sagemaker_mpi_num_of_processes_per_host"] = config.processes_per_node
    if isinstance(config, TorchDistributed) and config.smddp:
        sent["sagemaker_distributed_dataparallel_enabled"] = True
        sent["sagemaker_distributed_dataparallel_custom_mpi_options"] = ""
    return sent


def smddp(config: Smddp | PyTorchDdp, instance: InstanceType) -> dict[str, Value]:
    """Return the hyperparameters of smddp, which SDK v2 also sends for pytorchddp."""
    return {
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_instance_type": instance.instance_type,
        "sagemaker_distributed_dataparallel_custom_mpi_options": config.custom_mpi_options,
    }


def mpi(config: Mpi | Horovod | SmpV1, instance: InstanceType) -> dict[str, Value]:
    """Return the hyperparameters of mpi and horovod, and the launcher's part of smp_v1."""
    sent: dict[str, Value] = {"sagemaker_mpi_enabled": True}
    if config.processes_per_node is not None:
        sent["sagemaker_mpi_num_of_processes_per_host"] = config.processes_per_node
    sent["sagemaker_mpi_custom_mpi_options"] = mpi_options(
        config.custom_mpi_options, config.efa_flags, instance
    )
    return sent


def _model_parallel(config: SmpV1 | SmpV2, instance: InstanceType) -> dict[str, Value]:
    return {
        "mp_parameters": config.parameters(),
        "sagemaker_distributed_dataparallel_enabled": False,
        "sagemaker_instance_type": instance.instance_type,
    }


def smp_v1(config: SmpV1, instance: InstanceType) -> dict[str, Value]:
    """Return the hyperparameters of smp_v1."""
    return {**mpi(config, instance), **_model_parallel(config, instance)}


def smp_v2(config: SmpV2, instance: InstanceType) -> dict[str, Value]:
    """Return the hyperparameters of smp_v2."""
    return {**_model_parallel(config, instance), "sagemaker_torch_distributed_enabled": True}


def parameter_server(config: ParameterServer, instance: InstanceType) -> dict[str, Value]:
    """Return the hyperparameters of parameter_server."""
    return {"sagemaker_parameter_server_enabled": True}
