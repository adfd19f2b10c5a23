"""The one call that gets what the rules look at that need no account: the plan,
and files on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from configs.catalogue import InstanceType, load_catalogue
from configs.models import BenchmarkConfig
from scaling.planning.plan import plan_types
from scaling.rules.limits import variables_of
from scaling.rules.rule import Facts, Files
from tasks.errors import PreflightRefused
from tasks.image.bases import dockerfile_bases, with_container
from tasks.image.find import build_arguments
from tasks.image.packages import REQUIREMENTS_FILE, read_requirements
from tasks.sweeps.folder import folder_problem

CLOCK_FILE = "nodesweep_clock.py"
"""The helper, which a program of one's own may have beside it: that it is there says nothing."""
_SAYS_PLANNED_STEPS = re.compile(r"planned_steps|\bclock\s*\([^)]*\bsteps\s*=")


def read_facts(config: BenchmarkConfig, variables: Mapping[str, str] | None = None) -> Facts:
    """The facts at the catalogue's price. `variables`: the environment of the run,
    None where it runs elsewhere.
    """
    instances = {name: load_catalogue().get(name) for name in config.instance_types}
    instance = instances[config.training.instance_type]
    try:
        config = config.model_copy(update={"image": with_container(config, instance)})
        files = replace(read_files(config), says_planned_steps=_says_planned_steps(config))
    except PreflightRefused as error:
        files = Files(problems=error.problems)
    facts = Facts(config, instance, plan_types(config, list(instances.values())), files)
    if variables is not None:
        reports = Path(config.report.directory)
        if (problem := folder_problem(reports)) is not None:
            problems = (*files.problems, f"report.directory: {problem}")
            facts = replace(facts, files=replace(files, problems=problems))
        used = variables_of(config.training.environment).values()
        facts = replace(
            facts, variables={name: len(variables[name]) for name in used if name in variables}
        )
    return with_arms(facts, instances)


def with_arms(facts: Facts, instances: Mapping[str, InstanceType]) -> Facts:
    """The facts with those of each instance type, where the sweep has several."""
    config, plan = facts.config, facts.plan
    if config.sweep.instance_types is None:
        return facts
    arms = tuple(
        replace(
            facts,
            config=_without_budget(config.of_type(name)),
            instance=instance,
            plan=plan.by_type[name],
            arms=(),
            beside=plan.points,
        )
        for name, instance in instances.items()
    )
    return replace(facts, arms=arms)


def _without_budget(config: BenchmarkConfig) -> BenchmarkConfig:
    """A budget is one for all types together."""
    return config.model_copy(update={"sweep": config.sweep.model_copy(update={"budget_usd": None})})


def read_files(config: BenchmarkConfig) -> Files:
    """The Dockerfile's bases, every file of context and code that names packages,
    and what the code asks for.
    """
    image, requirements = config.image, read_requirements(config)
    bases: tuple[str, ...] = ()
    packages: dict[str, str] = {}
    dockerfile = image.build_context / "Dockerfile"
    if image.uri is None and not config.runs_container_as_it_is and dockerfile.is_file():
        paths = [dockerfile, *sorted(dockerfile.parent.rglob("requirements*.txt"))]
        packages = {str(path): path.read_text(errors="replace") for path in paths if path.is_file()}
        found = dockerfile_bases(packages[str(dockerfile)], build_arguments(image))
        bases = tuple(base.reference for base in found)
    if requirements is None:
        return Files(bases, packages)
    packages[str(requirements.path)] = requirements.files[REQUIREMENTS_FILE]
    return Files(bases, packages, requirements, requirements.missing)


def _says_planned_steps(config: BenchmarkConfig) -> bool | None:
    """As Files has it; by the text of the code, which may still not say it when it runs."""
    source_dir = config.training.source_dir
    if config.sweep.design != "probe" or source_dir is None or not Path(source_dir).is_dir():
        return None
    if "planned_steps" in config.training.metric_definitions:
        return True
    root = Path(source_dir)
    return any(
        _SAYS_PLANNED_STEPS.search(path.read_text(errors="replace"))
        for path in root.rglob("*.py")
        if path.is_file()
        and path.name != CLOCK_FILE
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
