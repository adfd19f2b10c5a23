"""`training.distribution`: a typed choice, discriminated by `kind`, with fields per kind.

nodesweep/scaling/rules/distribution defines the request, requirements and pitfalls of each kind and
generates docs/distribution.md. Null fields of the model-parallel kinds are not sent, so that the
library's defaults apply.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nodesweep.configs.section import Section

MAX_PROCESSES_PER_NODE = 64

ProcessesPerNode = Annotated[int, Field(ge=1, le=MAX_PROCESSES_PER_NODE)]
Degree = Annotated[int, Field(ge=1)]
CustomMpiOptions = Annotated[
    str,
    Field(
        description=(
            "Extra arguments for mpirun, split at whitespace without quoting; `--NCCL_DEBUG"
            " X` sets NCCL's log level. MCA parameters that the toolkit already sets are not"
            " allowed."
        )
    ),
]
EfaFlags = Annotated[
    bool,
    Field(
        description=(
            "Export FI_PROVIDER=efa and RDMAV_FORK_SAFE=1, and FI_EFA_USE_DEVICE_RDMA=1 if"
            " the adapter supports it, to every rank on an instance with EFA. Set false to"
            " configure the network yourself."
        )
    ),
]
MpiProcesses = Annotated[
    ProcessesPerNode | None,
    Field(
        description=(
            "Processes per node that mpirun starts, 1–64. Null: one per accelerator, or one"
            " on a CPU instance."
        )
    ),
]


class NoDistribution(Section):
    """One plain process per node; the program sets up its own process group."""

    kind: Literal["none"] = Field(
        description="none: one plain process per node; your script sets up its own process group."
    )
    processes_per_node: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PROCESSES_PER_NODE,
        description="Must be 1 or null; both start one process per node.",
    )

    @model_validator(mode="after")
    def _check_single_process(self) -> Self:
        if self.processes_per_node not in (None, 1):
            raise ValueError(
                f"processes_per_node is {self.processes_per_node}, but kind 'none' starts one"
                " process per node; use kind 'torch_distributed'"
            )
        return self


class TorchDistributed(Section):
    """torchrun on every node."""

    kind: Literal["torch_distributed"] = Field(
        description="torch_distributed: torchrun on every node."
    )
    processes_per_node: ProcessesPerNode | None = Field(
        default=None,
        description=(
            "Processes per node that torchrun starts, 1–64. Null: one per accelerator, or one"
            " on a CPU instance."
        ),
    )
    smddp: bool = Field(
        default=False,
        description=(
            "Set true if your script selects smdistributed.dataparallel's AllGather (FSDP,"
            ' sharded states) with init_process_group("smddp"); torchrun still starts it. For'
            " its AllReduce use kind smddp."
        ),
    )


class PyTorchDdp(Section):
    """mpirun with PyTorch's DistributedDataParallel."""

    kind: Literal["pytorchddp"] = Field(
        description="pytorchddp: mpirun, one process per accelerator."
    )
    custom_mpi_options: CustomMpiOptions = ""


class Smddp(Section):
    """smdistributed.dataparallel: AWS's collectives under torch.distributed."""

    kind: Literal["smddp"] = Field(
        description="smddp: smdistributed.dataparallel, one process per GPU, started by mpirun."
    )
    custom_mpi_options: CustomMpiOptions = ""


class Mpi(Section):
    """mpirun over all nodes."""

    kind: Literal["mpi"] = Field(description="mpi: mpirun over all nodes.")
    processes_per_node: MpiProcesses = None
    custom_mpi_options: CustomMpiOptions = ""
    efa_flags: EfaFlags = True


class Horovod(Section):
    """Horovod, which SageMaker launches with mpirun."""

    kind: Literal["horovod"] = Field(description="horovod: Horovod ranks, started by mpirun.")
    processes_per_node: MpiProcesses = None
    custom_mpi_options: CustomMpiOptions = ""
    efa_flags: EfaFlags = True


class ParameterServer(Section):
    """A parameter server: plain processes, because PyTorch's toolkit does not start one."""

    kind: Literal["parameter_server"] = Field(
        description=(
            "parameter_server: sent as the SageMaker SDK sends it; with PyTorch this is one"
            " plain process per node."
        )
    )


class Trainium(Section):
    """torchrun with PyTorch/XLA on Trainium."""

    kind: Literal["trainium"] = Field(description="trainium: torchrun, one process per NeuronCore.")
    processes_per_node: ProcessesPerNode | None = Field(
        default=None,
        description="Processes per node that torchrun starts, 1–64. Null: one per NeuronCore.",
    )


class _ModelParallel(Section):
    """Base of both generations of smdistributed.modelparallel; most fields are its parameters."""

    own_fields: ClassVar[frozenset[str]] = frozenset({"kind"})

    def parameters(self) -> dict[str, bool | int | float | str]:
        """Return those of the library's parameters (`mp_parameters`) that are set, by name."""
        return {
            name: value
            for name in type(self).model_fields
            if name not in self.own_fields and (value := getattr(self, name)) is not None
        }


class SmpV1(_ModelParallel):
    """smdistributed.modelparallel 1.x: a model split into pipeline partitions, under mpirun.

    Names, defaults and bounds: SageMaker SDK v2, doc/api/training/smd_model_parallel_general.rst
    and fw_utils.validate_mp_config; sharding (sdp_*): AWS developer guide, sharded data
    parallelism. The SDK checks only the type of load_partition and partition_file, and does not
    check sdp_*. No public document says more about load_partition and partition_file.
    """

    own_fields: ClassVar[frozenset[str]] = frozenset(
        {"kind", "processes_per_node", "custom_mpi_options", "efa_flags"}
    )

    kind: Literal["smp_v1"] = Field(
        description="smp_v1: smdistributed.modelparallel 1.x under mpirun."
    )
    partitions: Degree = Field(
        description=(
            "Partitions the model is split into, at least 1; partitions times replicas is the"
            " world size."
        )
    )
    microbatches: Degree | None = Field(
        default=None,
        description=(
            "Micro-batches in the pipeline, a divisor of the per-replica batch; more keep it"
            " busier. Null: 1 (no pipelining)."
        ),
    )
    placement_strategy: (
        Literal["spread", "cluster", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"] | None
    ) = Field(
        default=None,
        description=(
            "Ranks that hold one replica: cluster uses neighboring ranks, spread distant"
            " ones. Null: cluster."
        ),
    )
    pipeline: Literal["interleaved", "simple"] | None = Field(
        default=None, description="Pipeline schedule; null: interleaved."
    )
    optimize: Literal["memory", "speed"] | None = Field(
        default=None,
        description=(
            "What tensor parallelism optimizes: memory use, or speed (less communication). Null:"
            " memory."
        ),
    )
    ddp: bool | None = Field(
        default=None,
        description="Set true if there is more than one replica of the model. Null: false.",
    )
    active_microbatches: Degree | None = Field(
        default=None,
        description=(
            "Maximum micro-batches in flight; lower it to save memory. Null: partitions + 2."
        ),
    )
    auto_partition: bool | None = Field(
        default=None,
        description=(
            "Let the library split the model; false requires default_partition. Null: true."
        ),
    )
    default_partition: int | None = Field(
        default=None,
        ge=0,
        description=(
            "Partition of modules your script does not place, 0 to partitions - 1. Null: 0."
        ),
    )
    memory_weight: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Weight of memory relative to computation in automatic partitioning, 0–1. Null:"
            " the library's default."
        ),
    )
    tensor_parallel_degree: Degree | None = Field(
        default=None,
        description=(
            "Ranks that share a layer; more than 1 requires ddp. Raise it if a layer does not"
            " fit one device. Null: 1."
        ),
    )
    sharded_data_parallel_degree: Degree | None = Field(
        default=None,
        description=(
            "Ranks that the training state is sharded over; must divide the number of"
            " replicas. Null: 1."
        ),
    )
    shard_optimizer_state: bool | None = Field(
        default=None,
        description="Shard the optimizer state across replicas to save memory. Null: false.",
    )
    prescaled_batch: bool | None = Field(
        default=None,
        description="Set true if ranks that share a layer receive the same samples. Null: false.",
    )
    fp16: bool | None = Field(default=None, description="Train in FP16. Null: false.")
    bf16: bool | None = Field(
        default=None, description="Train in BF16; use it with sharding. Null: false."
    )
    fp16_params: bool | None = Field(
        default=None, description="Create parameters in FP16. Null: false."
    )
    skip_tracing: bool | None = Field(
        default=None, description="Skip the initial trace of the model. Null: false."
    )
    offload_activations: bool | None = Field(
        default=None,
        description=(
            "Offload activations to CPU memory; requires activation checkpointing. Null: false."
        ),
    )
    activation_loading_horizon: Degree | None = Field(
        default=None,
        description=(
            "How many pipeline tasks ahead to load offloaded activations back, at least 1. Null: 4."
        ),
    )
    deterministic_server: bool | None = Field(
        default=None,
        description="Use the same order of pipeline requests on all replicas. Null: false.",
    )
    ddp_dist_backend: Literal["auto", "nccl"] | None = Field(
        default=None,
        description="Backend between replicas; auto: AWS's backend if available. Null: auto.",
    )
    ddp_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description=(
            "Port of the replicas' process group, 0–65,535. Null: SageMaker's MASTER_PORT."
        ),
    )
    horovod: bool | None = Field(
        default=None,
        description="Use Horovod instead of ddp between replicas; for TensorFlow. Null: false.",
    )
    contiguous: bool | None = Field(
        default=None,
        description=(
            "Make each partition one connected piece of the graph; for TensorFlow. Null: true."
        ),
    )
    load_partition: bool | None = Field(
        default=None,
        description="Load the split from partition_file instead of computing one. Null: false.",
    )
    partition_file: str | None = Field(
        default=None,
        min_length=1,
        description="Path in the container of a saved split. Null: none.",
    )
    sdp_reduce_bucket_size: Degree | None = Field(
        default=None,
        description="With sharding: elements per gradient bucket. Null: 500,000,000.",
    )
    sdp_param_persistence_threshold: int | None = Field(
        default=None,
        ge=0,
        description=(
            "With sharding: parameters with fewer elements are not sharded. Null: 1,000,000."
        ),
    )
    sdp_max_live_parameters: Degree | None = Field(
        default=None,
        description=(
            "With sharding: maximum parameters gathered at a time; lower it to save memory."
            " Null: 1,000,000,000."
        ),
    )
    sdp_hierarchical_allgather: bool | None = Field(
        default=None,
        description="With sharding: gather within nodes first, then across them. Null: true.",
    )
    sdp_gradient_clipping: float | None = Field(
        default=None,
        gt=0,
        description="With sharding: maximum L2 norm of the gradients, above 0. Null: 1.0.",
    )
    processes_per_node: MpiProcesses = None
    custom_mpi_options: CustomMpiOptions = ""
    efa_flags: EfaFlags = True

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.auto_partition is False and self.default_partition is None:
            raise ValueError("default_partition is missing; auto_partition false needs it")
        if self.default_partition is not None and self.default_partition >= self.partitions:
            raise ValueError(
                f"default_partition is {self.default_partition}; it must be less than"
                f" {self.partitions}"
            )
        if (self.tensor_parallel_degree or 1) > 1 and not self.ddp:
            raise ValueError("tensor_parallel_degree is more than 1, which needs ddp: true")
        if self.horovod and self.ddp:
            raise ValueError(
                "horovod and ddp are both true; only one can average the replicas' gradients"
            )
        for name in ("ddp_port", "ddp_dist_backend"):
            if getattr(self, name) is not None and self.ddp is None:
                raise ValueError(f"{name} is set, but has no effect without ddp; set ddp: true")
        if self.load_partition and self.partition_file is None:
            raise ValueError(
                "load_partition is true, but partition_file is missing; set it to the file to load"
            )
        sharding = [
            name
            for name in type(self).model_fields
            if name.startswith("sdp_") and getattr(self, name) is not None
        ]
        if sharding and (self.sharded_data_parallel_degree or 1) == 1:
            raise ValueError(
                f"{sharding[0]} requires sharding; set sharded_data_parallel_degree to 2 or more"
            )
        return self


class SmpV2(_ModelParallel):
    """smdistributed.modelparallel 2.x: sharding and tensor parallelism over FSDP, under torchrun.

    Names and bounds: AWS developer guide, "The SageMaker model parallel library v2 reference".
    """

    kind: Literal["smp_v2"] = Field(
        description="smp_v2: smdistributed.modelparallel 2.x (torch.sagemaker) under torchrun."
    )
    hybrid_shard_degree: int = Field(
        ge=0,
        description=(
            "Ranks that the training state is sharded over; 0: follow the FSDP strategy of"
            " your script."
        ),
    )
    tensor_parallel_degree: Degree | None = Field(
        default=None,
        description=(
            "Ranks that share a layer. Raise it if a layer does not fit one device. Null: 1."
        ),
    )
    context_parallel_degree: Degree | None = Field(
        default=None,
        description=(
            "Ranks that share one sequence, at most hybrid_shard_degree; raise it for long"
            " sequences. Null: 1."
        ),
    )
    expert_parallel_degree: Degree | None = Field(
        default=None, description="Ranks that the experts are distributed over. Null: 1."
    )
    sm_activation_offloading: bool | None = Field(
        default=None, description="Use the library's activation offloading. Null: false."
    )
    activation_loading_horizon: Degree | None = Field(
        default=None,
        description=(
            "How many layers ahead to load offloaded activations back; more takes more memory. "
            "Null: 2."
        ),
    )
    fsdp_cache_flush_warnings: bool | None = Field(
        default=None,
        description="Warn when FSDP flushes the CUDA cache, which costs time. Null: false.",
    )
    allow_empty_shards: bool | None = Field(
        default=None, description="Allow shards that hold no part of a tensor. Null: false."
    )
    random_seed: int | None = Field(
        default=None, ge=0, description="Seed of distributed modules, at least 0. Null: 12345."
    )


DistributionConfig = Annotated[
    NoDistribution
    | TorchDistributed
    | PyTorchDdp
    | Smddp
    | SmpV1
    | SmpV2
    | Mpi
    | ParameterServer
    | Trainium
    | Horovod,
    Field(discriminator="kind"),
]
