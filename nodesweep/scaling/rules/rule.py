"""The parts of a preflight rule: its facts, its findings and its row in docs/preflight.md."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling.planning.budget import budget_problem
from nodesweep.scaling.rules.images import ImageFacts, image_facts

# avoids a cycle: the plan imports nodesweep/scaling/rules/distribution
if TYPE_CHECKING:
    from nodesweep.scaling.planning.plan import PlannedPoint, SweepPlan


@dataclass(frozen=True)
class Findings:
    """The results of rules, each a sentence that names its field.

    Problems refuse the sweep. Notices report files that are left out, facts that were not looked up
    in the account, and settings that may be intended. Hints suggest improvements to the config.
    """

    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def merge_arms(found: Mapping[str, Findings]) -> Findings:
    """Merge the findings of all arms, and keep each sentence only once.

    A sentence that does not apply to all arms is prefixed with the arm's name.
    """

    def merged(each: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        distinct = dict.fromkeys(sentence for sentences in each.values() for sentence in sentences)
        return tuple(
            text
            for sentence in distinct
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


def combine(found: Iterable[Findings]) -> Findings:
    """Merge all findings in order, and keep each sentence only once."""
    each = tuple(found)
    return Findings(
        tuple(dict.fromkeys(problem for one in each for problem in one.problems)),
        tuple(dict.fromkeys(notice for one in each for notice in one.notices)),
        tuple(dict.fromkeys(hint for one in each for hint in one.hints)),
    )


@dataclass(frozen=True)
class Requirements:
    """The requirements.txt of training.source_dir, and the files that it includes.

    `files` maps paths below source_dir to contents. `at_start`: the reason why the toolkit must
    install the packages at every start instead of an image layer; None if a layer can contain them.
    `missing`: a problem for each included file that is not sent with the code.
    """

    path: Path
    files: Mapping[str, bytes]
    at_start: str | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """Facts about the files of image and code, read before anything is sent.

    `base_images`: the base images of the Dockerfile. `packages`: contents of each Dockerfile and
    requirements*.txt by path. `requirements`: the code's requirements, None if there are none.
    `problems`: files that are missing or cannot be sent, and `notices`: files that are left out, as
    sentences. `mentions_planned_steps`: True if the code of a probe sweep contains the names with
    which a program reports the steps of a full run; None if there is no code to check. `has_setup`:
    True if the code has a top-level setup.py. `entry_point_problem`: the reason why the packed code
    would lack its entry point. `dataset_bytes`: the size of a local dataset; None if unknown.
    """

    base_images: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    requirements: Requirements | None = None
    problems: tuple[str, ...] = ()
    mentions_planned_steps: bool | None = None
    has_setup: bool = False
    entry_point_problem: str | None = None
    notices: tuple[str, ...] = ()
    dataset_bytes: int | None = None

    @property
    def has_layer(self) -> bool:
        """True if jobs run in an image with a layer that contains the code's packages."""
        return self.requirements is not None and self.requirements.at_start is None


@dataclass(frozen=True)
class Facts:
    """The facts for rules that need no account.

    `config` names the container that image.framework resolves to. `variables` holds the length of
    each variable that training.environment refers to and that is set; it is None for a plan, whose
    run may be started elsewhere. `request_problems` lists problems in the shape of the requests. In
    a sweep of several arms, `arms` maps each arm's name to its facts, as if the arm were measured
    alone; there, `points_of_all_arms` holds the points of all arms, and `points_of_type` those of
    the arms with the same instance type and training plan.
    """

    config: BenchmarkConfig
    instance: InstanceType
    plan: SweepPlan
    files: Files = Files()
    variables: Mapping[str, int] | None = None
    request_problems: tuple[str, ...] = ()
    arms: Mapping[str, Facts] = field(default_factory=dict)
    points_of_all_arms: tuple[PlannedPoint, ...] = ()
    points_of_type: tuple[PlannedPoint, ...] = ()

    @property
    def each(self) -> tuple[Facts, ...]:
        """The facts of each arm, or only this object in a sweep of one arm."""
        return tuple(self.arms.values()) or (self,)

    @property
    def budget_problem(self) -> str | None:
        """The reason why sweep.budget_usd refuses the sweep; None if it does not."""
        plan, remedy = self.plan, self.instance.price_remedy
        return budget_problem(
            self.config.sweep.budget_usd, plan.cost_bound_usd, plan.cost_bound_reason, remedy
        )

    @property
    def training(self) -> TrainingConfig:
        """The config's training section."""
        return self.config.training

    @property
    def distribution(self) -> DistributionConfig:
        """The config's distribution section."""
        return self.config.training.distribution

    @property
    def validation_instance(self) -> InstanceType | None:
        """The instance type of the Processing job that may validate the dataset, if any."""
        dataset = self.config.dataset
        if dataset is None or dataset.validation is None or not dataset.may_use_spark:
            return None
        return load_catalogue().get(dataset.validation.instance_type)

    @property
    def node_counts(self) -> tuple[int, ...]:
        """The sweep's node counts."""
        return self.config.sweep.node_counts

    @property
    def max_nodes(self) -> int:
        """The number of nodes of the largest job."""
        return max(self.config.sweep.arm_jobs)

    @property
    def peak_nodes(self) -> int:
        """Maximum nodes of this instance type in use by jobs that run at the same time."""
        return self._peak(self.points_of_type or self.plan.points)

    @property
    def peak_nodes_together(self) -> int:
        """Maximum nodes in use by jobs that run at the same time, over all arms of the sweep."""
        return self._peak(self.points_of_all_arms or self.plan.points)

    @property
    def kept_nodes(self) -> int:
        """Maximum nodes of this instance type in warm pools at the same time.

        A pool serves one job at a time, and only jobs of its node count.
        """
        at_once = self.config.sweep.max_parallel_jobs
        jobs = Counter(self._nodes_of_jobs(self.points_of_type or self.plan.points))
        return sum(nodes * min(at_once, count) for nodes, count in jobs.items())

    def _peak(self, points: Iterable[PlannedPoint]) -> int:
        at_once = self.config.sweep.max_parallel_jobs
        return sum(heapq.nlargest(at_once, self._nodes_of_jobs(points)))

    def _nodes_of_jobs(self, points: Iterable[PlannedPoint]) -> Iterator[int]:
        may_run = self.config.sweep.may_run
        return (point.nodes for point in points if may_run(point.nodes, point.repeat))

    @property
    def processes_per_node(self) -> int:
        """The number of ranks per node."""
        return self.plan.processes_per_node

    @property
    def image(self) -> ImageFacts | None:
        """The facts in the container's name; None if it contains none."""
        return image_facts(self.config)

    @property
    def ships_program(self) -> bool:
        """True if the job runs the program of infra/image."""
        return self.config.ships_program

    @property
    def custom_mpi_options(self) -> list[str]:
        """The user's mpirun options, split as the toolkit does."""
        return str(getattr(self.distribution, "custom_mpi_options", "")).split()


Subject = TypeVar("Subject")
Judge = Callable[[Subject], Findings]
"""A rule: a pure function from facts to findings, which are empty if all is well."""


def refuses(sentences: Callable[[Subject], Iterable[str]]) -> Judge[Subject]:
    """Turn a function into a rule whose sentences refuse the sweep."""

    @wraps(sentences)
    def judge(subject: Subject) -> Findings:
        return Findings(problems=tuple(sentences(subject)))

    return judge


def advises(sentences: Callable[[Subject], Iterable[str]]) -> Judge[Subject]:
    """Turn a function into a rule whose sentences are hints, which refuse nothing."""

    @wraps(sentences)
    def judge(subject: Subject) -> Findings:
        return Findings(hints=tuple(sentences(subject)))

    return judge


def notes(sentences: Callable[[Subject], Iterable[str]]) -> Judge[Subject]:
    """Turn a function into a rule whose sentences are notices, which a run also logs."""

    @wraps(sentences)
    def judge(subject: Subject) -> Findings:
        return Findings(notices=tuple(sentences(subject)))

    return judge


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One row in a table of rules and in docs/preflight.md, in Markdown.

    `refuses`: the problem. `remedy`: the way to fix it. `says`: what the rule reports without
    refusing ("" for nothing).
    """

    name: str
    judges: tuple[Judge[Subject], ...]
    refuses: str = ""
    remedy: str = ""
    says: str = ""
