"""Collect the facts for the offline preflight rules: the plan and local files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nodesweep.configs.atomic import folder_problem
from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.models import BenchmarkConfig, TrainingConfig
from nodesweep.configs.training import variables_of
from nodesweep.errors import DatasetMissing, DatasetRefused, PreflightRefused
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.rules.dockerfile import dockerfile_bases
from nodesweep.scaling.rules.rule import Facts, Files
from nodesweep.tasks.dataset.files import list_directory
from nodesweep.tasks.dataset.naming import notices_of
from nodesweep.tasks.folder import shown_names
from nodesweep.tasks.image.bases import with_container
from nodesweep.tasks.image.find import ContextFiles, list_context
from nodesweep.tasks.image.packages import (
    REQUIREMENTS_FILE,
    decoded,
    read_requirements,
    unread_requirements,
)
from nodesweep.tasks.jobs.source import LocalCode

CLOCK_FILE = "nodesweep_clock.py"
"""The helper module, whose presence next to a user's program doesn't mean that it is used."""
_NAMES_PACKAGES = re.compile(r"(.*/)?requirements[^/]*\.txt")
_SAYS_PLANNED_STEPS = re.compile(r"planned_steps|\bclock\s*\([^)]*\bsteps\s*=")


def read_facts(
    config: BenchmarkConfig, variables: Mapping[str, str] | None = None, is_resume: bool = False
) -> Facts:
    """Return the facts about a config, with prices from the catalogue.

    Args:
        config: the config.
        variables: the run's environment variables, or None for a run on a different machine.
        is_resume: True for a resume, which sends no data, code or build context, so they are not
            checked.
    """
    instances = [config.node_type(name) for name in config.possible_types]
    instance = config.node_type(config.training.instance_type)
    try:
        config = config.model_copy(update={"image": with_container(config, instance)})
        local = LocalFiles(config)
        files = replace(
            local.read(is_sent=not is_resume),
            mentions_planned_steps=local.says_planned_steps(),
            has_setup=local.has_setup(),
            entry_point_problem=None if is_resume else local.code.entry_point_problem(),
        )
    except PreflightRefused as error:
        files = Files(problems=error.problems)
    facts = Facts(config, instance, plan_arms(config, instances), files)
    if variables is not None:
        reports = Path(config.report.directory)
        if (problem := folder_problem(reports, "report.directory or --output")) is not None:
            problems = (*files.problems, f"report.directory: {problem}")
            facts = replace(facts, files=replace(files, problems=problems))
        used = variables_of(config.training.environment).values()
        facts = replace(
            facts, variables={name: len(variables[name]) for name in used if name in variables}
        )
    return with_arms(facts, instances)


def with_arms(facts: Facts, instances: Sequence[InstanceType]) -> Facts:
    """Add the facts of each arm, or of each instance type on which the only arm can run.

    `instances` are the types of config.possible_types, in the same order.
    """
    config, plan = facts.config, facts.plan
    if not plan.by_arm:
        main, *fallbacks = instances
        if not fallbacks:
            return facts
        alone = config.without_budget()
        on_type = [(each, alone.on_type(each.instance_type)) for each in fallbacks]
        return replace(
            facts,
            arms={
                main.instance_type: replace(facts, config=alone, arms={}),
                **{
                    each.instance_type: replace(
                        facts, config=own, instance=each, plan=plan_arms(own, [each]), arms={}
                    )
                    for each, own in on_type
                },
            },
        )
    configs = {arm: config.of_arm(arm.name).without_budget() for arm in plan.by_arm}
    arms = {
        arm.name: replace(
            facts,
            config=configs[arm],
            instance=instance,
            plan=own,
            arms={},
            points_of_all_arms=plan.points,
            points_of_type=tuple(
                point
                for point in plan.points
                if _capacity(configs[point.arm].training) == _capacity(configs[arm].training)
            ),
        )
        for (arm, own), instance in zip(plan.by_arm.items(), instances, strict=True)
    }
    return replace(facts, arms=arms)


def _capacity(training: TrainingConfig) -> tuple[str, str | None]:
    """Return the instance type and training plan; arms with the same pair share nodes."""
    return training.instance_type, training.training_plan_arn


@dataclass(frozen=True)
class LocalFiles:
    """The local files of a config: its data, code and build context."""

    config: BenchmarkConfig

    @property
    def code(self) -> LocalCode:
        """The code among them."""
        return LocalCode.of(self.config)

    def read(self, is_sent: bool = True) -> Files:
        """Return the Dockerfile's bases, the files that list packages, and the code's requirements.

        If `is_sent` is True, include problems and notices about data, code and context that can't
        be sent or are left out.
        """
        image, fixed_image = self.config.image, self.config.platform.fixed_image
        requirements = read_requirements(self.config.training, fixed_image)
        bases: tuple[str, ...] = ()
        packages: dict[str, str] = {}
        problems: list[str] = []
        notices: list[str] = []
        for read_notices in (
            (self._dataset_notices, self._of_code, self._of_context) if is_sent else ()
        ):
            try:
                notices += read_notices()
            except PreflightRefused as error:
                problems += error.problems
        dockerfile = image.build_context / "Dockerfile"
        if not problems and self._has_context():
            names = filter(_NAMES_PACKAGES.fullmatch, self._context_files().files)
            paths = [dockerfile, *(image.build_context / name for name in names)]
            packages = {str(path): decoded(path.read_bytes()) for path in paths}
            found = dockerfile_bases(packages[str(dockerfile)], image.all_build_args)
            bases = tuple(base.reference for base in found)
        if requirements is not None:
            packages[str(requirements.path)] = decoded(requirements.files[REQUIREMENTS_FILE])
            problems += requirements.missing
        return Files(
            bases,
            packages,
            requirements,
            tuple(problems),
            notices=tuple(notices),
            dataset_bytes=self._dataset_bytes() if is_sent else None,
        )

    def _has_context(self) -> bool:
        image = self.config.image
        is_built = image.uri is None and not self.config.runs_unmodified_container
        return is_built and (image.build_context / "Dockerfile").is_file()

    def _of_code(self) -> list[str]:
        source_dir = self.config.training.source_dir
        if source_dir is None or not Path(source_dir).is_dir():
            return []
        left_out = _left_out(
            "training.source_dir", Path(source_dir), self.code.list_files().secrets
        )
        return [*left_out, *self._unread_requirements(Path(source_dir))]

    def _unread_requirements(self, folder: Path) -> list[str]:
        """Return a notice about a requirements.txt that no job installs, if any."""
        found = unread_requirements(
            self.config.training, self.config.image.build_context, Path.cwd()
        )
        if found is None:
            return []
        if found.is_relative_to(folder.absolute()):
            inside = found.relative_to(folder.absolute()).as_posix()
            remedy = f"write the line `-r {inside}` into {folder / REQUIREMENTS_FILE}"
        else:
            remedy = f"copy it into {folder}, or set training.source_dir to its folder"
        return [
            f"training.source_dir: {found} is not installed, since only the {REQUIREMENTS_FILE} at"
            f" the top of {folder} is; {remedy}"
        ]

    def _of_context(self) -> list[str]:
        if not self._has_context():
            return []
        return _left_out(
            "image.context", self.config.image.build_context, self._context_files().secrets
        )

    def _context_files(self) -> ContextFiles:
        return list_context(self.config.image.build_context, self.config.own_folders)

    def _dataset_notices(self) -> list[str]:
        """Return notices about other files in a local dataset's folder.

        Missing data is reported by the run itself.

        Raises:
            PreflightRefused: the data cannot be sent.
        """
        section = self.config.dataset
        if section is None or section.is_remote:
            return []
        try:
            return notices_of(section, list_directory(section).names)
        except DatasetMissing:
            return []
        except DatasetRefused as error:
            raise PreflightRefused(str(error)) from error

    def _dataset_bytes(self) -> int | None:
        """Return the size of a local dataset, or None if it is in S3 or can't be sent."""
        section = self.config.dataset
        if section is None or section.is_remote:
            return None
        try:
            return sum(path.stat().st_size for path in list_directory(section).paths)
        except (DatasetMissing, DatasetRefused):
            return None

    def has_setup(self) -> bool:
        """Return True if the code has a setup.py."""
        source_dir = self.config.training.source_dir
        return source_dir is not None and (Path(source_dir) / "setup.py").exists()

    def says_planned_steps(self) -> bool | None:
        """Search the code for the value of Files.mentions_planned_steps.

        Even if the code mentions planned steps, the program may not report them at run time.
        """
        source_dir = self.config.training.source_dir
        if not self.config.ends_early(1) or source_dir is None or not Path(source_dir).is_dir():
            return None
        if "planned_steps" in self.config.training.metric_definitions:
            return True
        try:
            files = self.code.list_files().files
        except PreflightRefused:  # reported by read()
            return None
        return any(
            _SAYS_PLANNED_STEPS.search(path.read_text(errors="replace"))
            for path in files
            if path.suffix == ".py" and path.name != CLOCK_FILE
        )


def _left_out(field: str, folder: Path, secrets: Sequence[str]) -> list[str]:
    """Return a notice about files that are not sent, if any."""
    if not secrets:
        return []
    return [
        f"{field}: {shown_names(secrets)} in {folder} {'is' if len(secrets) == 1 else 'are'} left"
        " out, since the name suggests a secret; rename files that the program needs, or"
        " pass their content through training.environment"
    ]
