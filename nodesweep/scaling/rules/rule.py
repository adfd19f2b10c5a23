"""What every rule of the preflight is made of: what it looks at, what it finds, and its row in
docs/preflight.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling.rules.images import ImageFacts, image_facts, is_shipped_program

# the plan itself asks nodesweep/scaling/rules/distribution how many processes a node has
if TYPE_CHECKING:
    from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan


@dataclass(frozen=True)
class Findings:
    """Problems refuse the sweep. A notice says what the account was not asked, what is left out, or
    what may be meant so; a hint, what of the config may be better otherwise. Each is a sentence
    that names its field.
    """

    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def of_types(found: Mapping[str, Findings]) -> Findings:
    """The findings of each instance type as one: each sentence once, and one that does not hold for
    all of them with its type.
    """

    def merged(each: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        said = dict.fromkeys(sentence for sentences in each.values() for sentence in sentences)
        return tuple(
            text
            for sentence in said
            for text in (
                [sentence]
                if all(sentence in sentences for sentences in each.values())
                else [f"{name}: {sentence}" for name, own in each.items() if sentence in own]
            )
        )

    return Findings(
        merged({name: one.problems for name, one in found.items()}),
        merged({name: one.notices for name, one in found.items()}),
        merged({name: one.hints for name, one in found.items()}),
    )


def together(found: Iterable[Findings]) -> Findings:
    """All findings as one, in the order in which they come."""
    each = tuple(found)
    return Findings(
        tuple(problem for one in each for problem in one.problems),
        tuple(notice for one in each for notice in one.notices),
        tuple(hint for one in each for hint in one.hints),
    )


@dataclass(frozen=True)
class Requirements:
    """The requirements.txt of training.source_dir, and what it includes.

    `files` maps paths below source_dir to contents. `at_start` is why no layer of the image can
    hold the packages, so that the toolkit installs them at every start; None: one can. `missing`:
    the problem of each included file that does not come with the code.
    """

    path: Path
    files: Mapping[str, str]
    at_start: str | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """What was read, before anything is sent, of the files that image and code are made of.

    `base_images`: what the Dockerfile builds on; `packages`: path of each Dockerfile and
    requirements*.txt -> its text; `requirements`: what the code asks for, None where that is
    nothing; `problems`: what is not there or can't be sent, `notices`: what is left out, as
    sentences. `says_planned_steps`: whether the code of
    a probe sweep has the words by which a program says how many steps a whole run makes; None:
    there is no code here to look at. `has_setup`: whether the code has a setup.py at its top;
    `entry_point_problem`: why the packed code would lack its entry point.
    """

    base_images: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    requirements: Requirements | None = None
    problems: tuple[str, ...] = ()
    says_planned_steps: bool | None = None
    has_setup: bool = False
    entry_point_problem: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def has_layer(self) -> bool:
        """Whether jobs run in an image with a layer of the code's packages,
        as far as config and files tell.
        """
        return self.requirements is not None and self.requirements.at_start is None


@dataclass(frozen=True)
class Facts:
    """What the rules look at that need no account.

    `config` names the container that image.framework stands for. `variables` has the length of each
    variable that training.environment refers to, where it is set; None: nobody looked, since a plan
    may be made elsewhere than the run. `request_problems`: what is wrong with the shape of the
    requests, once they have been built. `arms`: of a sweep of several instance types what is known
    of each, as if it were measured alone; each of them has in `beside` the points of all.
    """

    config: BenchmarkConfig
    instance: InstanceType
    plan: SweepPlan
    files: Files = Files()
    variables: Mapping[str, int] | None = None
    request_problems: tuple[str, ...] = ()
    arms: tuple[Facts, ...] = ()
    beside: tuple[PlannedPoint, ...] = ()

    @property
    def each(self) -> tuple[Facts, ...]:
        """The facts of each instance type; of one type these."""
        return self.arms or (self,)

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def distribution(self) -> DistributionConfig:
        return self.config.training.distribution

    @property
    def validation_instance(self) -> InstanceType | None:
        """Of the Processing job that may validate the dataset; None where there is none."""
        dataset = self.config.dataset
        if dataset is None or dataset.validation is None or not dataset.may_use_spark:
            return None
        return load_catalogue().get(dataset.validation.instance_type)

    @property
    def node_counts(self) -> tuple[int, ...]:
        return self.config.sweep.node_counts

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest job."""
        return max(self.node_counts)

    @property
    def peak_nodes(self) -> int:
        """The most nodes in use at once: those of the largest jobs,
        as many as run beside each other.
        """
        return self._peak(self.plan.points)

    @property
    def peak_nodes_together(self) -> int:
        """The same over all instance types of the sweep."""
        return self._peak(self.beside or self.plan.points)

    def _peak(self, points: Iterable[PlannedPoint]) -> int:
        at_once = self.config.sweep.max_parallel_jobs
        return sum(heapq.nlargest(at_once, (point.nodes for point in points)))

    @property
    def processes_per_node(self) -> int:
        return self.plan.processes_per_node

    @property
    def image(self) -> ImageFacts | None:
        """What the container's name tells, None where that is nothing."""
        return image_facts(self.config)

    @property
    def ships_program(self) -> bool:
        return is_shipped_program(self.config)

    @property
    def custom_mpi_options(self) -> list[str]:
        """What the user adds to mpirun, as the toolkit splits it."""
        return str(getattr(self.distribution, "custom_mpi_options", "")).split()


Looked = TypeVar("Looked")
Judge = Callable[[Looked], Findings]
"""A rule itself: pure, from what it looks at to what it finds; nothing found where all is well."""


def refuses(say: Callable[[Looked], Iterable[str]]) -> Judge[Looked]:
    """The rule whose sentences refuse the sweep."""

    @wraps(say)
    def judge(looked: Looked) -> Findings:
        return Findings(problems=tuple(say(looked)))

    return judge


def advises(say: Callable[[Looked], Iterable[str]]) -> Judge[Looked]:
    """The rule whose sentences are hints, which refuse nothing."""

    @wraps(say)
    def judge(looked: Looked) -> Findings:
        return Findings(hints=tuple(say(looked)))

    return judge


def notes(say: Callable[[Looked], Iterable[str]]) -> Judge[Looked]:
    """The rule whose sentences are notices, which refuse nothing and which a run logs, too."""

    @wraps(say)
    def judge(looked: Looked) -> Findings:
        return Findings(notices=tuple(say(looked)))

    return judge


@dataclass(frozen=True)
class Rule(Generic[Looked]):
    """One row of a table of rules and of docs/preflight.md, in Markdown.

    `refuses`: what is a problem; `remedy`: what to do about it; `says`: what is said and refuses
    nothing ("": nothing).
    """

    name: str
    judges: tuple[Judge[Looked], ...]
    refuses: str = ""
    remedy: str = ""
    says: str = ""
