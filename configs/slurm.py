"""The config section of a Slurm cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nodesweep.configs.section import NOT_MEASURED, Section

_ONE_WORD = r"^[A-Za-z0-9_.,:=&|()*\[\]@/+-]+$"
Word = Annotated[str, StringConstraints(pattern=_ONE_WORD, max_length=200)]
"""A value of an #SBATCH line, which ends at a space."""


class SlurmPlatform(Section):
    """A Slurm cluster, used through its own commands on a login node."""

    launcher: Literal["slurm"] = Field(description="The kind of backend.")
    folder: str = Field(
        pattern=r"^/[A-Za-z0-9_.+@:/-]*[A-Za-z0-9_.+@:-]$",
        max_length=1000,
        description=(
            "Absolute path of a folder that the login node and all compute nodes share, for"
            " scripts, logs and results. Slurm replaces % in such paths, so it can't contain one."
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
        default=None, description="Reservation to use (sbatch --reservation)."
    )
    constraint: Word | None = Field(
        default=None,
        description=(
            "Features that every node must have (sbatch --constraint). Set it where a partition"
            " mixes kinds of nodes."
        ),
    )
    gres: Word | None = Field(
        default=None, description="Generic resources of each node (sbatch --gres), e.g. gpu:4."
    )
    exclusive: bool = Field(
        default=True,
        description=(
            "Use whole nodes. Set false only where the site forbids it: other people's jobs on"
            " the nodes distort the times."
        ),
    )
    requeue: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        description=(
            "Let Slurm start a job again after a node failure or preemption, as a further attempt"
            " under the same name. False: such a job has failed."
        ),
    )
    setup: tuple[str, ...] = Field(
        default=(),
        description=(
            "Shell commands that prepare the environment on the first node before the program"
            " starts, e.g. module load cuda/12.4 or source /home/me/venv/bin/activate."
        ),
    )
    container_image: Word | None = Field(
        default=None,
        description="Image to run the program in (srun --container-image; needs pyxis).",
    )
