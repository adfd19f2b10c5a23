"""The config section of a Slurm cluster."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.distribution import TorchDistributed
from nodesweep.configs.platform import OWN_REGION, PlatformWithoutAws
from nodesweep.configs.section import LOCAL_PATH, NOT_MEASURED, Section, Slug, truncate
from nodesweep.configs.training import variables_of

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig

_ONE_WORD = r"^[A-Za-z0-9_.,:=&|()*\[\]@/+-]+$"
Word = Annotated[str, StringConstraints(pattern=_ONE_WORD, max_length=200)]
"""A value of an #SBATCH line, which ends at a space."""
_Image = Annotated[
    str, StringConstraints(pattern=_ONE_WORD.replace("@/", "@/#"), max_length=200)
]  # pyxis: REGISTRY#IMAGE
_KINDS = ("torch_distributed", "none")
_NOT_ON_SLURM = {
    "spot": "Slurm has no spot capacity",
    "checkpoints": "write them to a folder that the nodes share",
    "keep_alive_seconds": "nodes return to the cluster after each job",
    "training_plan_arn": "set platform.reservation",
    "instance_fallbacks": "the cluster chooses the nodes",
    "vpc": "a VPC is an AWS network",
    "encrypt_inter_container_traffic": "the cluster's network determines it",
    "volume_kms_key_id": "KMS keys exist only on AWS",
    "output_kms_key_id": "KMS keys exist only on AWS",
    "extra_channels": "have the program read the folders itself",
    "tensorboard": "write the logs to $SM_OUTPUT_DATA_DIR",
    "retry_attempts": "set platform.requeue",
    "infra_check": "the cluster checks its nodes",
    "placement": "set platform.constraint",
    "mlflow": "have the program log to the server itself",
    "volume_size_gb": "jobs use the nodes' own disks",
    "tags": "jobs are charged to platform.account",
}
"""Fields of `training` that only SageMaker supports, and what to do instead."""
_CHOOSE_NODES = ("platform.partition", "platform.constraint", "platform.gres")
"""Fields that a variant can set to run on different nodes."""


class ClusterNode(InstanceType):
    """A node of a cluster, as the config describes it."""

    instance_type: str = Field(description="The config's name for the nodes.")
    specs_date: datetime.date | None = Field(  # type: ignore[assignment]
        default=None, description="Unknown: a config has no date."
    )

    @property
    def is_aws(self) -> bool:
        """False, because the facts and the price come from the config."""
        return False

    @property
    def purchase_option(self) -> str:
        """How nodes are bought at this price: always "as configured"."""
        return "as configured"

    @property
    def cost_unit(self) -> Literal["USD", "node-hours"]:
        """Cost unit if the node has no price, because clusters charge node-hours."""
        return "node-hours"

    @property
    def price_remedy(self) -> str:
        """Remedy if sweep.budget_usd cannot be checked, since there is no price."""
        return "set it, or remove sweep.budget_usd"

    @property
    def family(self) -> str:
        """The name of the type; clusters have no families."""
        return self.instance_type

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        return self


class NodeConfig(Section):
    """The known facts about the nodes of the partition, which are all alike."""

    cores: float = Field(gt=0, description="CPU cores of a node, as the program sees them (nproc).")
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of a node, 0–64.")
    gpu: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 -]{0,39}$",
        description="Model of the GPUs, e.g. A100. Null: unknown.",
    )
    gpu_memory_gib: float | None = Field(
        default=None, gt=0, description="Memory of one GPU, GiB. Null: unknown."
    )
    memory_gib: float | None = Field(
        default=None, gt=0, description="Main memory of a node, GiB. Null: unknown."
    )
    network_gbit_per_second: float | None = Field(
        default=None, gt=0, description="Line rate of the network cards, Gbit/s. Null: unknown."
    )
    usd_per_hour: Annotated[float | None, NOT_MEASURED] = Field(
        default=None,
        gt=0,
        le=1000,
        description=(
            "Price of a node-hour at your site, USD. Null: costs are reported in node-hours."
        ),
    )


class SlurmPlatform(PlatformWithoutAws):
    """A Slurm cluster, used through its own commands on a login node."""

    fixed_image: ClassVar[str | None] = "none"

    launcher: Literal["slurm"] = Field(  # type: ignore[assignment]
        description="slurm: jobs run on a Slurm cluster."
    )
    cluster: Slug = Field(description="Name of the cluster, shown in reports.")
    node: NodeConfig = Field(description="Known facts about the partition's nodes.")
    folder: Annotated[str, LOCAL_PATH] = Field(
        pattern=r"^/[A-Za-z0-9_.+@:/-]*[A-Za-z0-9_.+@:-]$",
        max_length=1000,
        description=(
            "Absolute path of a folder that the login node and all compute nodes share, for"
            " scripts, logs and results. Every user needs their own. Slurm replaces % in such"
            " paths, so it can't contain one."
        ),
    )
    partition: Word | None = Field(
        default=None, description="Partition (sbatch --partition). Null: the cluster's default."
    )
    account: Annotated[Word | None, NOT_MEASURED] = Field(
        default=None, description="Account to charge (sbatch --account). Null: your default."
    )
    qos: Word | None = Field(
        default=None, description="Quality of service (sbatch --qos). Null: the default."
    )
    reservation: Word | None = Field(
        default=None, description="Reservation to use (sbatch --reservation). Null: none."
    )
    constraint: Word | None = Field(
        default=None,
        description=(
            "Features that every node must have (sbatch --constraint). Set it if a partition"
            " mixes kinds of nodes. Null: any."
        ),
    )
    gres: Word | None = Field(
        default=None,
        description="Generic resources of each node (sbatch --gres), e.g. gpu:4. Null: none.",
    )
    exclusive: bool = Field(
        default=True,
        description=(
            "Use whole nodes. Set false only if the site forbids it, because other people's jobs"
            " on the nodes distort the times."
        ),
    )
    requeue: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        description=(
            "Let Slurm start a job again after a node failure or preemption, as a further attempt"
            " under the same name. False: the job counts as failed."
        ),
    )
    setup: tuple[str, ...] = Field(
        default=(),
        description=(
            "Shell commands that prepare the environment on the first node before the program"
            " starts, e.g. module load cuda/12.4 or source /home/me/venv/bin/activate."
        ),
    )
    container_image: _Image | None = Field(
        default=None,
        description=(
            "Container image for the program, in the format of container_runtime, e.g."
            " /images/torch.sqsh for pyxis or /images/torch.sif for apptainer. Null: none."
        ),
    )
    container_runtime: Literal["pyxis", "apptainer"] = Field(
        default="pyxis",
        exclude_if=lambda runtime: runtime == "pyxis",
        description=(
            "Runs container_image: srun's plugin pyxis, or apptainer, which must be on the nodes'"
            " PATH (platform.setup may load its module)."
        ),
    )

    @property
    def shared_folder(self) -> str | None:
        """The folder that the login node and all compute nodes share."""
        return self.folder

    def with_jobs_of(self, recorded: Mapping[str, Any]) -> Self:
        """Return this section with the account and requeue that are recorded for a sweep.

        Both are part of the names of its jobs, although a resume may change them.
        """
        names = {"account": recorded.get("account"), "requeue": recorded.get("requeue", False)}
        return self.model_copy(update=names)

    def own_node_type(self, name: str) -> InstanceType | None:
        """Return the node type that the config describes, whatever its name."""
        node, usd = self.node, self.node.usd_per_hour
        return ClusterNode(
            instance_type=name,
            accelerator=node.gpu if node.gpus else None,
            accelerators=node.gpus,
            accelerator_memory_gib=node.gpu_memory_gib if node.gpus else None,
            devices_per_accelerator=1 if node.gpus else None,
            vcpus=node.cores,
            memory_gib=node.memory_gib,
            network_gbit_per_second=node.network_gbit_per_second,
            network_burst=None,
            efa=None,
            architecture=None,
            instance_store=None,
            specs_source="platform.node",
            on_demand_usd_per_hour=usd,
            price_region=None if usd is None else OWN_REGION,
            price_source=None if usd is None else "platform.node.usd_per_hour",
            price_note=None if usd is not None else "platform.node.usd_per_hour is not set",
        )

    def problems(self, config: BenchmarkConfig) -> tuple[str, ...]:
        """Return a message per setting that Slurm does not support."""
        training, dataset = config.training, config.dataset
        fields = type(training).model_fields
        found = [
            f"training.{name}: not supported on Slurm; remove it ({instead})"
            for name, instead in _NOT_ON_SLURM.items()
            if getattr(training, name) != fields[name].get_default(call_default_factory=True)
        ]
        if re.fullmatch(_ONE_WORD, training.instance_type) is None:
            found.append(
                f"training.instance_type: got {truncate(repr(training.instance_type))}; on Slurm,"
                " use one word of letters, digits and any of _ . , : = & | ( ) * [ ] @ / + -"
            )
        if training.source_dir is None:
            found.append(
                "training.source_dir: not set; on Slurm, set it to the folder of your script"
            )
        if config.image.uri != self.fixed_image:
            found.append(
                "image: nodesweep builds no images for Slurm; remove the section, and prepare the"
                " environment with platform.setup or platform.container_image"
            )
        if self.container_image is None and self.container_runtime != "pyxis":
            found.append(
                f"platform.container_runtime: got {self.container_runtime}, but container_image is"
                " not set; set it, or remove this field"
            )
        sources = [self.folder] if dataset is None else [self.folder, dataset.source]
        if self.container_image is not None and re.search("[,:]", "".join(sources)):
            found.append(
                f"platform.container_image: the container can't mount {' or '.join(sources)}, since"
                " , and : separate mounts; use paths without them"
            )
        distribution = training.distribution
        if distribution.kind not in _KINDS:
            found.append(
                f"training.distribution.kind: {distribution.kind} is not supported on Slurm; use"
                f" one of {', '.join(_KINDS)}"
            )
        if isinstance(distribution, TorchDistributed) and distribution.smddp:
            found.append(
                "training.distribution.smddp: SMDDP exists only on SageMaker; set it to false"
            )
        if (
            isinstance(distribution, TorchDistributed)
            and not self.node.gpus
            and distribution.processes_per_node is None
        ):
            found.append(
                "training.distribution.processes_per_node: not set; set it, since the nodes have"
                " no GPUs (platform.node.gpus) to derive it from"
            )
        if references := variables_of(training.environment):
            found.append(
                f"training.environment: {', '.join(sorted(references))} refers to a variable of"
                " this machine, whose value would be readable in the job's script; set it in the"
                " program"
            )
        if dataset is not None and dataset.is_remote:
            found.append(
                f"dataset.source: got {dataset.source}; on Slurm use a folder that all nodes share"
            )
        if config.sweep.instance_types is not None:
            found.append(
                "sweep.instance_types: platform.node describes one type of node; remove it, and"
                " describe the others in sweep.variants, e.g. {name: big, set:"
                " {training.instance_type: big-node, platform.partition: big, platform.node:"
                " {cores: 96}}}"
            )
        nodes: dict[object, object] = {training.instance_type: {}}
        for variant in sorted(config.sweep.variants or (), key=lambda each: not each.node_settings):
            own = variant.set.get("training.instance_type", training.instance_type)
            if not isinstance(own, str):
                continue  # refused with the variant's own config
            moves = [field for field in _CHOOSE_NODES if field in variant.set]
            if moves and (own == training.instance_type or "platform.node" not in variant.set):
                found.append(
                    f"sweep.variants: {variant.name} sets {' and '.join(moves)}, so it runs on"
                    " other nodes; give these nodes a name of your choice in"
                    " training.instance_type, and set every field of platform.node for them (repeat"
                    " the values if the nodes are identical)"
                )
            elif nodes.setdefault(own, variant.node_settings) == variant.node_settings:
                continue
            elif variant.node_settings:
                found.append(
                    f"sweep.variants: {variant.name} has its own platform.node, but its"
                    f" training.instance_type, {own}, names other nodes; set that, too, to a name"
                    " of your choice for its nodes"
                )
            else:
                found.append(
                    f"sweep.variants: {variant.name} uses {own}, which another variant describes"
                    " in platform.node; set the same platform.node here"
                )
        return tuple(found)
