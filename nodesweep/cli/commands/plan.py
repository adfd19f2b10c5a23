"""`nodesweep plan` and `nodesweep requests`: the plan as text, and the requests as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, NamedTuple

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.training import TrainingConfig, variables_of
from nodesweep.flows.stages.offline import CheckedSweep, check_offline, check_requests
from nodesweep.launch.registry import backend_of
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import old_price_text, price_of
from nodesweep.scaling.design.costs import NOISE, REFERENCE_MINUTES
from nodesweep.scaling.design.registry import DESIGNS, design_of
from nodesweep.scaling.formats import format_percent, join_words, nodes_text
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.outcome.attainment import MOST_REPEATS
from nodesweep.scaling.planning.budget import charged_bound, node_hours_bound
from nodesweep.scaling.planning.plan import POLICY_LABELS, PlannedPoint, SweepPlan
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.scaling.planning.validation import describe_engine
from nodesweep.scaling.rules.rule import Facts
from nodesweep.scaling.secrets import hide_in_request
from nodesweep.tasks.dataset.files import channel_folders, check_keys, scan_directory
from nodesweep.tasks.dataset.remote.objects import split_uri
from nodesweep.tasks.image.find import read_context
from nodesweep.tasks.jobs.source import LocalCode, code_uri

_SAME_SPEED = (
    "(Assuming that all {}s are equally fast, so that none is dropped after the second\n"
    "pass of probes; USD at their mean price)"
)
_UNBUILT_DIGEST = "sha256:" + "0" * 64


def plan_of(config: BenchmarkConfig) -> CheckedSweep:
    """Return the plan, and all problems that can be found without the account."""
    return check_requests(check_offline(config))


def describe_plan(checked: CheckedSweep) -> str:
    """Return the points in execution order and the cost bound, as text."""
    facts, plan = checked.facts, checked.facts.plan
    config = facts.config
    training, sweep = config.training, config.sweep
    most = "at most " if sweep.rules.decides_as_it_goes else ""
    points = [
        point
        for point in plan.points
        if sweep.may_run(point.nodes, point.repeat) and not sweep.is_validation_run(point.repeat)
    ]
    width = max((len(arm.name) for arm in plan.by_arm), default=0)
    heading = f"  {sweep.arm_kind:<{max(width, 13)}}" if width else ""
    lines = [
        (
            f"{config.name}: {most}{sweep.most_jobs} jobs on {_types(config, plan)}"
            f" per node, {sweep.order} order (seed {sweep.order_seed})"
        ),
        (
            f"{_policy(training)}, at most {sweep.max_parallel_jobs} job(s) at once,"
            f" {training.max_runtime_seconds} s each"
        ),
        *_repeated(config),
        *_amount(config),
        "",
        (
            f"{'job':>4}{heading} {'nodes':>6} {'repeat':>7} {'world':>6} {'global batch':>13}"
            f" {'per replica':>12} {'learning rate':>14}"
        ),
    ]
    lines += [
        f"{point.order + 1:>4}{_type_cell(point, width)} {point.nodes:>6} {point.repeat:>7}"
        f" {point.world_size:>6} "
        f"{_number(point.global_batch_size):>13} {_number(point.per_replica_batch_size):>12} "
        f"{_number(point.learning_rate):>14}"
        for point in points
    ]
    lines += design_of(config.sweep).plan_lines(config)
    bound, reason = plan.cost_bound_usd, plan.cost_bound_reason
    bound_text = "unknown" if bound is None else f"{bound:.2f} USD"
    region = config.platform.region
    charged = [charged_bound(each.config, price_of(each.instance, region)) for each in facts.each]
    arms = [each for each in charged if each is not None]
    if len(arms) == len(charged):
        bound_text = f"{sum(hours for hours, _ in arms):.1f} node-hours"
        texts = Counter(text for _, text in arms)
        reason = "; ".join(f"{text}, x {n} arms" if n > 1 else text for text, n in texts.items())
    if bound_text != "unknown":
        bound_text += _of_full_sweep(config)
    lines += ["", f"cost bound: {bound_text} ({reason})", *_old_prices(facts)]
    lines += _designs(config, plan)
    if config.dataset is not None and (engine := describe_engine(config.dataset)):
        lines.append(f"validation of the dataset: {engine}")
    lines += (
        []
        if checked.findings.problems
        else [f"packages: {text}" for text in _packages(checked.facts)]
    )
    lines += [f"hint: {hint}" for hint in checked.findings.hints]
    return "\n".join(lines)


def _of_full_sweep(config: BenchmarkConfig) -> str:
    """Compare the maximum node-hours with those of a full sweep, which has as many runs per count.

    The text is "" unless the design predicts node counts.
    """
    if not config.sweep.rules.predicts:
        return ""
    update = {"design": "full", "confirm": None, "repeats": config.sweep.arm_repeats}
    whole = config.sweep.model_copy(update=update)
    of_full, _ = node_hours_bound(whole, config.training)
    of_this, _ = node_hours_bound(config.sweep, config.training)
    return f", {format_percent(of_this / of_full)} of a full sweep's"


def _repeated(config: BenchmarkConfig) -> list[str]:
    """Return a line about repeats of contended runs; an empty list if no nodes are emulated."""
    if not any(config.node_type(name).emulated for name in config.instance_types):
        return []
    return [f"a run whose nodes were contended is repeated, at most {MOST_REPEATS} times"]


def _amount(config: BenchmarkConfig) -> list[str]:
    """Return a line about the step count; an empty list if the program decides it."""
    every = {config.of_arm(name).training.steps for name in config.arm_names}
    steps = [one for one in every if one is not None]
    if steps:
        return [f"each job trains for {' or '.join(map(str, sorted(steps)))} steps"]
    seconds = config.training.baseline_seconds
    if seconds is None:
        return []
    place = nodes_text(min(config.sweep.node_counts))
    return [
        (
            f"each job trains for as many steps as the first completes on {place} in about "
            f"{seconds:g} s"
        )
    ]


def _types(config: BenchmarkConfig, plan: SweepPlan) -> str:
    """Return the instance types with processes per node, e.g. "ml.g5.xlarge, 1 process(es)"."""
    if not plan.by_arm:
        types = " or ".join(config.possible_types)
        return f"{types}, {plan.processes_per_node} process(es)"
    plans = plan.by_arm.items()
    return join_words(f"{arm.name} ({each.processes_per_node} process(es))" for arm, each in plans)


def _type_cell(point: PlannedPoint, width: int) -> str:
    return f"  {point.arm.name:<{max(width, 13)}}" if width else ""


def _designs(config: BenchmarkConfig, plan: SweepPlan) -> list[str]:
    """Return a cost table of all designs, assuming the reference job's times.

    Designs that would be refused are left out; the table is empty if fewer than two remain.
    """
    shown = [each for design in DESIGNS.values() if (each := design.estimate(config))]
    if len(shown) < 2 or config.training.instance_fallbacks:
        return []
    usd = _mean_price(plan)
    times = ", ".join(f"{minutes:g}" for minutes in REFERENCE_MINUTES.values())
    lines = [
        "",
        f"Designs, for a job that takes {times} min on {join_words(REFERENCE_MINUTES)} nodes (the",
        (
            f"reference job, not yours) at {format_percent(NOISE)} noise; more noise, or a "
            "result near a limit, costs more:"
        ),
        (
            f"{'design':<24} {'least':>8} {'expected':>9} {'most':>8}  node-hours"
            f"{'' if usd is None else ', and USD expected'}"
        ),
    ]
    for each in shown:
        cost, price = each.cost, "" if usd is None else f"  {each.cost.expected * usd:.2f}"
        lines.append(
            f"{each.label:<24} {cost.least:>8.1f} {cost.expected:>9.1f} {cost.most:>8.1f}{price}"
        )
    notes = "".join(each.note for each in shown)
    lines.append(f"({notes}start-up not included)")
    if config.sweep.arm_count > 1:
        lines += _SAME_SPEED.format(config.sweep.arm_kind).split("\n")
    return lines


def _old_prices(facts: Facts) -> list[str]:
    """Return a line about each price that is out of date."""
    today, region = datetime.now(UTC).date(), facts.config.platform.region
    prices = {arm.instance.instance_type: price_of(arm.instance, region) for arm in facts.each}
    return [
        f"the price of {name} {old}; `nodesweep prices refresh` updates it"
        for name, price in prices.items()
        if (old := old_price_text(price, today))
    ]


def _mean_price(plan: SweepPlan) -> float | None:
    """Return the mean USD per node-hour of the arms, which run equally often; None if unknown."""
    all_prices = plan.usd_per_hour_by_code.values()
    prices = [price for price in all_prices if price is not None]
    return fmean(prices) if len(prices) == len(all_prices) else None


def _packages(facts: Facts) -> list[str]:
    """Describe how requirements.txt is installed, as far as this is known without an account."""
    packages = facts.files.requirements
    if packages is None:
        return []
    if packages.at_start is not None:
        # imported late, because the report modules are slow to import
        from nodesweep.scaling.report.sources import at_start_text

        return [at_start_text(packages.at_start)]
    config = facts.config
    # otherwise preflight refuses the config, or no layer is built
    is_sure = config.platform.create_missing or config.image.uri is None
    where = (
        ""
        if is_sure
        else (
            f" if ECR has the repository {config.image.repository} (image.repository); check "
            "with plan --online"
        )
    )
    return [
        f"{packages.path} is installed as a layer of the image, built once per content and base "
        f"image{where}"
    ]


def _policy(training: TrainingConfig) -> str:
    batch = (
        "batch size left to the program"
        if training.batch is None
        else POLICY_LABELS[training.batch.policy]
    )
    rate = training.learning_rate
    learning_rate = (
        "learning rate left to the program" if rate is None else f"learning-rate rule {rate.rule}"
    )
    return f"{batch}, {learning_rate}"


def _number(value: float | None) -> str:
    """Format a number of the plan; "-" for a number that the program chooses."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


class Requests(NamedTuple):
    """The requests of a sweep as shown to a user.

    Attributes:
        requests: The requests, with secrets masked.
        masked: Names of the masked members.
        variables: Members that a run fills from its environment, mapped to the variable's name.
    """

    requests: list[dict[str, Any]]
    masked: tuple[str, ...]
    variables: Mapping[str, str]


def requests_of(config: BenchmarkConfig, checked: CheckedSweep) -> Requests:
    """Return every point's request with secrets masked; the unknown image digest is all zeros."""
    platform, facts = config.platform, checked.facts
    backend = backend_of(platform)
    registry = f"{platform.account_id}.dkr.ecr.{platform.region}.amazonaws.com"
    inputs = ResolvedInputs(
        sweep_id=names.sweep_id(config, datetime.now(UTC)),
        image_uri=_container(config, facts) or _unbuilt_image(config, registry),
        **_dataset_place(config),
        source_uri=(
            code_uri(backend, LocalCode.of(config), not facts.files.has_layer)
            if config.training.source_dir
            else None
        ),
    )
    variables, render = variables_of(config.training.environment), backend.render
    shown = [
        hide_in_request(render(build_spec(config, point, inputs, render)), variables)
        for point in facts.plan.points
        if config.sweep.may_run(point.nodes, point.repeat)
    ]
    masked = dict.fromkeys(member for _, members in shown for member in members)
    return Requests([request for request, _ in shown], tuple(masked), variables)


def _container(config: BenchmarkConfig, facts: Facts) -> str | None:
    """Return the existing image that the config names; None if a run builds one."""
    uri = facts.config.image.uri
    if uri is None:
        read_context(config.image, left_out=config.own_folders)
    return None if facts.files.has_layer else uri


def _unbuilt_image(config: BenchmarkConfig, registry: str) -> str:
    return names.image_uri(f"{registry}/{config.image.repository}", _UNBUILT_DIGEST)


def _dataset_place(config: BenchmarkConfig) -> dict[str, Any]:
    """Return dataset_uri and dataset_folders; folders known only to S3 appear as `<folder>`."""
    section, platform = config.dataset, config.platform
    if section is None:
        return {"dataset_uri": None}
    if section.is_remote:
        bucket, prefix = split_uri(section.source)
        return {"dataset_uri": f"s3://{bucket}/{prefix}", "dataset_folders": ("<folder>",)}
    dataset = scan_directory(section)
    check_keys(dataset, section, platform.prefix)
    folders = channel_folders(section, [file.name for file in dataset.files])
    if place := backend_of(platform).shared_folder(section.source):
        return {"dataset_uri": place, "dataset_folders": folders}
    prefix = names.dataset_data_prefix(platform.prefix, section.name, dataset.digest)
    return {"dataset_uri": f"s3://{platform.bucket}/{prefix}", "dataset_folders": folders}
