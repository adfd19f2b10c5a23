"""`training.distribution`: one typed choice, told apart by `kind`;
each kind has its own fields and no others.

What each kind sends, demands and gets wrong stands in nodesweep/scaling/rules/distribution.
docs/distribution.md is made from that.
A field of the model-parallel kinds that is null is left to the library's default and not sent.
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
            "Arguments added to mpirun, split at white space without any quoting; `--NCCL_DEBUG X`"
            " sets NCCL's log level. No MCA parameter that the toolkit sets already."
        )
    ),
]
EfaFlags = Annotated[
    bool,
    Field(
        description=(
            "Export FI_PROVIDER=efa and RDMAV_FORK_SAFE=1, and FI_EFA_USE_DEVICE_RDMA=1 where the"
            " adapter can, to every rank of an instance with EFA; false where you set up the"
            " network yourself."
        )
    ),
]
MpiProcesses = Annotated[
    ProcessesPerNode | None,
    Field(
        description=(
            "Processes mpirun starts per node; null: one per accelerator, or one on a CPU instance."
        )
    ),
]


class NoDistribution(Section):
    """One plain process per node; the program sets up its own process group."""

    kind: Literal["none"] = Field(description="none: one plain process per node.")
    processes_per_node: int | None = Field(
        default=None, ge=1, le=MAX_PROCESSES_PER_NODE, description="1, or null for the same."
    )

    @model_validator(mode="after")
    def _plain_is_single(self) -> Self:
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
            "Processes torchrun starts per node;"
            " null: one per accelerator, or one on a CPU instance."
        ),
    )
    smddp: bool = Field(
        default=False,
        description=(
            "True for a program that takes smdistributed.dataparallel's AllGather (FSDP, sharded"
            ' states) by init_process_group("smddp"): the SDK\'s two options together. torchrun'
            " starts it; for its AllReduce use kind smddp."
        ),
    )


class PyTorchDdp(Section):
    """mpirun with PyTorch's own DistributedDataParallel."""

    kind: Literal["pytorchddp"] = Field(
        description="pytorchddp: mpirun, one process per accelerator."
    )
    custom_mpi_options: CustomMpiOptions = ""


class Smddp(Section):
    """smdistributed.dataparallel: AWS's collectives under torch.distributed."""

    kind: Literal["smddp"] = Field(
        description="smddp: smdistributed.dataparallel, one process per GPU, by mpirun."
    )
    custom_mpi_options: CustomMpiOptions = ""


class Mpi(Section):
    """mpirun over all nodes."""

    kind: Literal["mpi"] = Field(description="mpi: mpirun over all nodes.")
    processes_per_node: MpiProcesses = None
    custom_mpi_options: CustomMpiOptions = ""
    efa_flags: EfaFlags = True


class Horovod(Section):
    """Horovod, which on SageMaker is launched by mpirun."""

    kind: Literal["horovod"] = Field(description="horovod: Horovod's ranks, started by mpirun.")
    processes_per_node: MpiProcesses = None
    custom_mpi_options: CustomMpiOptions = ""
    efa_flags: EfaFlags = True


class ParameterServer(Section):
    """A parameter server, which PyTorch's toolkit does not start: plain processes."""

    kind: Literal["parameter_server"] = Field(
        description=(
            "parameter_server: sent as the SDK sends it; with PyTorch one plain process per node."
        )
    )


class Trainium(Section):
    """torchrun with PyTorch/XLA on Trainium."""

    kind: Literal["trainium"] = Field(description="trainium: torchrun, one process per NeuronCore.")
    processes_per_node: ProcessesPerNode | None = Field(
        default=None, description="Processes torchrun starts per node; null: one per NeuronCore."
    )


class _ModelParallel(Section):
    """Both generations of smdistributed.modelparallel:
    some fields are the library's own parameters.
    """

    own_fields: ClassVar[frozenset[str]] = frozenset({"kind"})

    def parameters(self) -> dict[str, bool | int | float | str]:
        """The library's parameters that were given a value, under its own names
        (`mp_parameters`).
        """
        return {
            name: value
            for name in type(self).model_fields
            if name not in self.own_fields and (value := getattr(self, name)) is not None
        }


class SmpV1(_ModelParallel):
    """smdistributed.modelparallel 1.x: a model split into pipeline partitions, under mpirun.

    Names, defaults and bounds: SageMaker SDK v2, doc/api/training/smd_model_parallel_general.rst
    and fw_utils.validate_mp_config; sharding (sdp_*): AWS developer guide, sharded data
    parallelism. The SDK checks of load_partition and partition_file the type alone, and of sdp_*
    nothing; no public document tells more of the former.
    """

    own_fields: ClassVar[frozenset[str]] = frozenset(
        {"kind", "processes_per_node", "custom_mpi_options", "efa_flags"}
    )

    kind: Literal["smp_v1"] = Field(
        description="smp_v1: smdistributed.modelparallel 1.x under mpirun."
    )
    partitions: Degree = Field(
        description="Parts the model is split into; times the replicas it is the world size."
    )
    microbatches: Degree | None = Field(
        default=None,
        description=(
            "Micro-batches in the pipeline; the per-replica batch divides by it. Null: 1, none."
        ),
    )
    placement_strategy: (
        Literal["spread", "cluster", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"] | None
    ) = Field(
        default=None,
        description=(
            "Which ranks hold one replica: cluster neighbours, spread distant ones. Null: cluster."
        ),
    )
    pipeline: Literal["interleaved", "simple"] | None = Field(
        default=None, description="Pipeline schedule; null: interleaved."
    )
    optimize: Literal["memory", "speed"] | None = Field(
        default=None,
        description=(
            "What tensor parallelism saves: memory, or communication (speed). Null: memory."
        ),
    )
    ddp: bool | None = Field(
        default=None,
        description="True where there is more than one replica of the model. Null: false.",
    )
    active_microbatches: Degree | None = Field(
        default=None,
        description="Most micro-batches in flight; fewer save memory. Null: partitions + 2.",
    )
    auto_partition: bool | None = Field(
        default=None,
        description="Let the library split the model; false needs default_partition. Null: true.",
    )
    default_partition: int | None = Field(
        default=None,
        ge=0,
        description="Partition of what the program places nowhere; less than partitions. Null: 0.",
    )
    memory_weight: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of memory against computation in the automatic split, 0–1.",
    )
    tensor_parallel_degree: Degree | None = Field(
        default=None, description="Ranks that share a layer; more than 1 needs ddp. Null: 1."
    )
    sharded_data_parallel_degree: Degree | None = Field(
        default=None,
        description="Ranks the training state is sharded over; divides the replicas. Null: 1.",
    )
    shard_optimizer_state: bool | None = Field(
        default=None, description="Shard the optimiser's state over the replicas. Null: false."
    )
    prescaled_batch: bool | None = Field(
        default=None,
        description="Whether ranks that share a layer get the same samples. Null: false.",
    )
    fp16: bool | None = Field(default=None, description="Train in FP16. Null: false.")
    bf16: bool | None = Field(
        default=None, description="Train in BF16, with sharding. Null: false."
    )
    fp16_params: bool | None = Field(
        default=None, description="Make parameters in FP16. Null: false."
    )
    skip_tracing: bool | None = Field(
        default=None, description="Skip the first trace of the model. Null: false."
    )
    offload_activations: bool | None = Field(
        default=None,
        description="Keep activations in main memory; wants activation checkpoints. Null: false.",
    )
    activation_loading_horizon: Degree | None = Field(
        default=None,
        description="Pipeline tasks ahead of use that activations are loaded back. Null: 4.",
    )
    deterministic_server: bool | None = Field(
        default=None, description="Same order of pipeline requests on all replicas. Null: false."
    )
    ddp_dist_backend: Literal["auto", "nccl"] | None = Field(
        default=None,
        description="Backend between replicas; auto: AWS's own where it is there. Null: auto.",
    )
    ddp_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the replicas' process group. Null: SageMaker's MASTER_PORT.",
    )
    horovod: bool | None = Field(
        default=None,
        description="Horovod between replicas in place of ddp; for TensorFlow. Null: false.",
    )
    contiguous: bool | None = Field(
        default=None,
        description=(
            "Whether each part is one connected piece of the graph; for TensorFlow. Null: true."
        ),
    )
    load_partition: bool | None = Field(
        default=None,
        description="Take the split from partition_file in place of making one. Null: false.",
    )
    partition_file: str | None = Field(
        default=None, min_length=1, description="File of a saved split, a path in the container."
    )
    sdp_reduce_bucket_size: Degree | None = Field(
        default=None,
        description="Under sharding: elements in a bucket of gradients. Null: 500,000,000.",
    )
    sdp_param_persistence_threshold: int | None = Field(
        default=None,
        ge=0,
        description="Under sharding: parameters of fewer elements stay whole. Null: 1,000,000.",
    )
    sdp_max_live_parameters: Degree | None = Field(
        default=None,
        description="Under sharding: most parameters put together at a time. Null: 1,000,000,000.",
    )
    sdp_hierarchical_allgather: bool | None = Field(
        default=None,
        description="Under sharding: gather within nodes first, then between them. Null: true.",
    )
    sdp_gradient_clipping: float | None = Field(
        default=None,
        gt=0,
        description="Under sharding: largest L2 norm of the gradients. Null: 1.0.",
    )
    processes_per_node: MpiProcesses = None
    custom_mpi_options: CustomMpiOptions = ""
    efa_flags: EfaFlags = True

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
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
                "horovod and ddp are both true; one of them averages the gradients of the replicas"
            )
        for name in ("ddp_port", "ddp_dist_backend"):
            if getattr(self, name) is not None and self.ddp is None:
                raise ValueError(
                    f"{name} is set and ddp is not, without which it has no effect; set ddp: true"
                )
        if self.load_partition and self.partition_file is None:
            raise ValueError(
                "load_partition is true and partition_file is missing; name the file to load"
            )
        sharding = [
            name
            for name in type(self).model_fields
            if name.startswith("sdp_") and getattr(self, name) is not None
        ]
        if sharding and (self.sharded_data_parallel_degree or 1) == 1:
            raise ValueError(
                f"{sharding[0]} goes with sharding; set sharded_data_parallel_degree to 2 or more"
            )
        return self


class SmpV2(_ModelParallel):
    """smdistributed.modelparallel 2.x: sharding and tensor parallelism over PyTorch FSDP,
    under torchrun.

    Names and bounds: AWS developer guide, "The SageMaker model parallel library v2 reference".
    """

    kind: Literal["smp_v2"] = Field(
        description="smp_v2: smdistributed.modelparallel 2.x (torch.sagemaker), torchrun."
    )
    hybrid_shard_degree: int = Field(
        ge=0,
        description=(
            "Ranks the training state is sharded over; 0: as the program's FSDP strategy says."
        ),
    )
    tensor_parallel_degree: Degree | None = Field(
        default=None, description="Ranks that share a layer. Null: 1."
    )
    context_parallel_degree: Degree | None = Field(
        default=None,
        description="Ranks that share one sequence; at most hybrid_shard_degree. Null: 1.",
    )
    expert_parallel_degree: Degree | None = Field(
        default=None, description="Ranks the experts are spread over. Null: 1."
    )
    sm_activation_offloading: bool | None = Field(
        default=None, description="The library's own activation offloading. Null: false."
    )
    activation_loading_horizon: Degree | None = Field(
        default=None,
        description="How early activations are loaded back, in layers; more costs memory. Null: 2.",
    )
    fsdp_cache_flush_warnings: bool | None = Field(
        default=None, description="Warn where FSDP empties the CUDA cache; costs time. Null: false."
    )
    allow_empty_shards: bool | None = Field(
        default=None, description="Allow shards without a part of a tensor. Null: false."
    )
    random_seed: int | None = Field(
        default=None, ge=0, description="Seed of distributed modules. Null: 12345."
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
