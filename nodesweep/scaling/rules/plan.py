"""Rules on what the plan computes: batch sizes, the program's numbers, requests and cost bound."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.planning.plan import fill_placeholders, replicas_of
from nodesweep.scaling.rules import distribution
from nodesweep.scaling.rules.rule import Facts, refuses

# Service limits (API reference of CreateTrainingJob; botocore checks none of the maxima).
MAX_HYPERPARAMETERS = 100
MAX_HYPERPARAMETER_CHARS = 2500
MAX_HYPERPARAMETER_KEY_CHARS = 256
# Sent by nodesweep/launch/sagemaker/request.py under every distribution kind; the last one only
# with training.source_dir.
COMMON_HYPERPARAMETERS = (
    "sagemaker_program",
    "sagemaker_container_log_level",
    "sagemaker_region",
    "sagemaker_job_name",
    "sagemaker_submit_directory",
)


@refuses
def batch_divides(facts: Facts) -> Iterator[str]:
    """Refuse a fixed_global batch that replicas and accumulated batches can't divide evenly."""
    batch, processes = facts.training.batch, facts.processes_per_node
    if batch is None or batch.policy != "fixed_global":
        return
    shared = distribution.ranks_per_replica(facts.distribution)
    split = f" / {shared} ranks per replica" if shared > 1 else ""
    for nodes in facts.node_counts:
        divisor = replicas_of(nodes * processes, shared) * batch.accumulate_grad_batches
        if batch.size % divisor:
            below, above = batch.size // divisor * divisor, -(-batch.size // divisor) * divisor
            sizes = " or ".join(str(size) for size in (below, above) if size)
            yield (
                f"training.batch.size: {batch.size} is not divisible by {divisor} "
                f"({nodes_text(nodes)} x {processes} process{'es' * (processes > 1)}{split} x "
                f"{batch.accumulate_grad_batches} accumulated batches); use {sizes}, or remove "
                f"{nodes} from sweep.node_counts"
            )


@refuses
def numbers_reach_the_program(facts: Facts) -> list[str]:
    """Refuse a batch size or learning rate that no hyperparameter passes to the program.

    Otherwise every point of the report would be labeled with numbers that were not used.
    """
    batch, rate = facts.training.batch, facts.training.learning_rate
    demands = {}
    if batch is not None:
        demands["{per_replica_batch_size} or {global_batch_size}"] = (
            f"its batch size under policy {batch.policy}"
        )
        if batch.accumulate_grad_batches > 1:
            demands["{accumulate_grad_batches}"] = (
                f"the number of batches to accumulate, {batch.accumulate_grad_batches}"
            )
    if rate is not None and rate.rule != "none":
        demands["{learning_rate}"] = f"the learning rate of rule {rate.rule}"
    used = " ".join(str(value) for value in facts.training.hyperparameters.values())
    return [
        f"training.hyperparameters: no value contains {placeholders}, so the program would not "
        f"receive {number}; pass it under the name that your program reads"
        for placeholders, number in demands.items()
        if not any(placeholder in used for placeholder in placeholders.split(" or "))
    ]


@refuses
def hyperparameters_fit(facts: Facts) -> list[str]:
    """Refuse hyperparameters over SageMaker's limits, each at the point where it is longest.

    The launcher's hyperparameters are included. The common ones are only counted, because their
    values are short.
    """
    longest = {
        key: max(
            (json.dumps(fill_placeholders(value, point)) for point in facts.plan.points), key=len
        )
        for key, value in facts.training.hyperparameters.items()
    }
    launch = distribution.distribution_hyperparameters(facts.distribution, facts.instance)
    common = COMMON_HYPERPARAMETERS if facts.training.source_dir else COMMON_HYPERPARAMETERS[:-1]
    return hyperparameter_problems(
        {
            **longest,
            **{key: json.dumps(value) for key, value in launch.items()},
            **dict.fromkeys(common, ""),
        }
    )


def hyperparameter_problems(encoded: Mapping[str, str]) -> list[str]:
    """Return the problems that SageMaker would find in JSON-encoded hyperparameters."""
    problems = []
    for key, value in encoded.items():
        if len(key) > MAX_HYPERPARAMETER_KEY_CHARS:
            problems.append(
                f"training.hyperparameters: the name {key[:37]!r}… has {len(key)} characters, "
                f"but SageMaker allows at most {MAX_HYPERPARAMETER_KEY_CHARS}; shorten it"
            )
        if len(value) > MAX_HYPERPARAMETER_CHARS:
            if key.startswith("sagemaker_"):
                field, remedy = "distribution", "shorten custom_mpi_options"
            else:
                field, remedy = "hyperparameters", "put it in a file next to the program"
            problems.append(
                f"training.{field}: {key!r} has {len(value)} characters as JSON, but SageMaker "
                f"allows at most {MAX_HYPERPARAMETER_CHARS}; {remedy}"
            )
    if len(encoded) > MAX_HYPERPARAMETERS:
        problems.append(
            f"training.hyperparameters: {len(encoded)}, including the toolkit's own, but "
            f"SageMaker allows at most {MAX_HYPERPARAMETERS}; remove some"
        )
    return problems


@refuses
def budget_holds_the_bound(facts: Facts) -> list[str]:
    """Refuse a budget below the cost of the sweep if every attempt runs to its limit."""
    return [facts.budget_problem] if facts.budget_problem else []


@refuses
def types_are_of_a_kind(facts: Facts) -> list[str]:
    """Refuse a mix of emulated nodes and real instances, which are on different platforms."""
    emulated = [arm.instance.instance_type for arm in facts.each if arm.instance.emulated]
    if len(emulated) in (0, len(facts.each)):
        return []
    types = facts.training.instance_fallbacks
    field = "training.instance_fallbacks" if types else f"sweep.{facts.config.sweep.arms_field}"
    return [
        f"{field}: {', '.join(emulated)} are emulated nodes, but the"
        " other types are not; measure them in separate sweeps"
    ]


@refuses
def requests_are_well_formed(facts: Facts) -> list[str]:
    """Refuse requests that do not have the shape that the backend accepts."""
    return list(facts.request_problems)
