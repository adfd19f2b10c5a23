"""The arms of a sweep: the instance types or variants that it compares at every node count.

Every point belongs to an arm, whether it is planned or parsed from the name of a job.
"""

from __future__ import annotations

from typing import NamedTuple

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.sweep import BASE
from nodesweep.scaling import names
from nodesweep.scaling.formats import nodes_text


class Arm(NamedTuple):
    """One of the sweep's instance types or variants.

    `code` identifies the arm in job names; it is "" if the sweep has only one arm. `name` is the
    name of the instance type or variant.
    """

    code: str
    name: str
    is_variant: bool = False


class Cell(NamedTuple):
    """An arm and a node count."""

    arm: Arm
    nodes: int

    @property
    def text(self) -> str:
        """The cell in words, such as "4 x ml.g5.xlarge" or "4 nodes with fp16"."""
        if not self.arm.is_variant:
            return f"{self.nodes} x {self.arm.name}"
        name = "the base config" if self.arm.name == BASE else self.arm.name
        return f"{nodes_text(self.nodes)} with {name}"


class Key(NamedTuple):
    """The identity of a point in a sweep."""

    arm: Arm
    nodes: int
    repeat: int

    @property
    def cell(self) -> Cell:
        """The point's arm and node count."""
        return Cell(self.arm, self.nodes)

    @property
    def text(self) -> str:
        """The point in words: "4 x ml.g5.xlarge, repeat 1" or, for a single arm, "4 nodes, …"."""
        place = self.cell.text if self.arm.code else nodes_text(self.nodes)
        return f"{place}, repeat {self.repeat}"


def arms_of(config: BenchmarkConfig) -> tuple[Arm, ...]:
    """Return the arms of a sweep in the order of the config."""
    several, is_variant = config.sweep.arm_count > 1, config.sweep.variants is not None
    return tuple(
        Arm(names.arm_code(place) if several else "", name, is_variant)
        for place, name in enumerate(config.arm_names)
    )


def main_arm(config: BenchmarkConfig) -> Arm:
    """Return the arm of training.instance_type or, with variants, the arm of the base config."""
    main = (config.training.instance_type, BASE)
    return next(arm for arm in arms_of(config) if arm.name in main)


def arm_of_job(config: BenchmarkConfig, job_name: str) -> Arm | None:
    """Return the arm encoded in a job's name; None if it is not one of the config's arms."""
    key = names.parse_job_name(job_name)
    return next((arm for arm in arms_of(config) if key is not None and arm.code == key.arm), None)
