"""Run the offline part of the preflight for `nodesweep plan` and at the start of every run.

This module imports neither Prefect nor boto3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.scaling import names
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.scaling.rules.offline import check
from nodesweep.scaling.rules.rule import Facts, Findings, combine
from nodesweep.tasks.preflight.facts import read_facts


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep before it is submitted: facts about it, and the findings of the rules."""

    facts: Facts
    findings: Findings

    @property
    def backend(self) -> Backend:
        """The backend of its platform."""
        return backend_of(self.facts.config.platform)


def check_offline(
    config: BenchmarkConfig, variables: Mapping[str, str] | None = None, is_resume: bool = False
) -> CheckedSweep:
    """Check the config and the files of the image and the code.

    Args:
        config: The benchmark.
        variables: The run's environment, or None if unknown.
        is_resume: True if the sweep exists and already has its data, code and image.
    """
    facts = read_facts(config, variables, is_resume)
    return CheckedSweep(facts, check(facts))


def check_requests(checked: CheckedSweep) -> CheckedSweep:
    """Add problems with the shape of the points' requests, if there are no other problems.

    Placeholders replace the image and the data in S3, on which the shape does not depend.
    """
    if checked.findings.problems:
        return checked
    facts, config, backend = checked.facts, checked.facts.config, checked.backend
    has_code = config.training.source_dir is not None
    code = backend.code_uri("code/0/code.tar.gz") if has_code else None
    sweep = names.sweep_id(config, datetime.now(UTC))
    inputs = ResolvedInputs(
        sweep, "image", "s3://bucket/dataset/", code, dataset_folders=("folder",)
    )
    found: dict[str, None] = {}
    for point in facts.plan.points:
        try:
            request = backend.render(build_spec(config, point, inputs, backend.render))
            found |= dict.fromkeys(backend.shape_problems(request))
        except ValueError as error:  # a limit that applies to the request as a whole
            found[str(error)] = None
    problems = tuple(f"{backend.request} request: {problem}" for problem in found)
    return recheck(replace(facts, request_problems=problems), checked.findings.notices)


def recheck(facts: Facts, notices: tuple[str, ...], problems: tuple[str, ...] = ()) -> CheckedSweep:
    """Apply the rules to changed facts, and keep earlier notices and the given problems."""
    found = check(facts)
    new = tuple(notice for notice in notices if notice not in found.notices)
    return CheckedSweep(facts, combine([found, Findings(problems, new)]))


def raise_if_refused(checked: CheckedSweep) -> None:
    """Raise PreflightRefused if there are problems; the error holds all of them."""
    if checked.findings.problems:
        raise PreflightRefused(*checked.findings.problems)
