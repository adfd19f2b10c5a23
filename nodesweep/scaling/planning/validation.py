"""Choose the engine that validates a dataset, and bound the cost of a Processing job for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.models import BenchmarkConfig, ImageConfig
from nodesweep.configs.validation import SPARK_CONTEXT, SPARK_FROM_BYTES, ValidationConfig
from nodesweep.scaling.analysis.price import Price, node_cost_usd
from nodesweep.scaling.planning.budget import STOPPING_SECONDS

_GIGABYTE = 1e9
_ROUNDING = 1e-9
_FROM = "from which Spark is worthwhile"


@dataclass(frozen=True)
class EngineChoice:
    """The engine that validates a dataset, and the reason in words."""

    engine: Literal["pandas", "spark"]
    why: str


def choose_engine(section: DatasetConfig, size_bytes: int) -> EngineChoice:
    """Return the engine for a dataset of this size: the configured one, or one chosen by size."""
    asked = section.validation
    if asked is None:
        return EngineChoice("pandas", "dataset.validation is not set")
    if asked.engine != "auto":
        return EngineChoice(asked.engine, "as set by dataset.validation.engine")
    if not section.is_table:
        return EngineChoice("pandas", f"format {section.format} is not checked")
    if not section.is_remote:
        return EngineChoice("pandas", "the data is on this machine; Spark reads from S3")
    size, least = _gigabytes(size_bytes), _gigabytes(asked.spark_from_bytes)
    if size_bytes < asked.spark_from_bytes:
        just = "just " if size == least else ""
        return EngineChoice("pandas", f"{size} is {just}below the {least} {_FROM}")
    return EngineChoice("spark", f"{size} is at least the {least} {_FROM}")


def size_hint(section: DatasetConfig, size_bytes: int) -> str | None:
    """Return a hint if a large dataset in S3 is validated on one machine by default, else None."""
    if section.validation is not None or size_bytes < SPARK_FROM_BYTES:
        return None
    return (
        f"dataset.source: {_gigabytes(size_bytes)} is downloaded to this machine for "
        "validation; with dataset.validation: {engine: auto}, a Spark job validates it in place"
    )


def describe_engine(section: DatasetConfig) -> str | None:
    """Describe the engine or how size selects it; return None if dataset.validation is not set."""
    asked = section.validation
    if asked is None:
        return None
    job = f"Spark on {_cluster_text(asked)}"
    if asked.engine == "auto" and section.may_use_spark:
        return (
            f"by size: {job} from {_gigabytes(asked.spark_from_bytes)}, otherwise the machine "
            "that runs the flow"
        )
    choice = choose_engine(section, 0)
    where = job if choice.engine == "spark" else "the machine that runs the flow"
    return f"{where} ({choice.why})"


def spark_image(image: ImageConfig, asked: ValidationConfig) -> ImageConfig:
    """Return the image section for finding and building the Spark image.

    It keeps the repository and builder of `image`, and takes the context, base image and build
    arguments of the Spark image.
    """
    spark = asked.image
    return image.model_copy(
        update={
            "context": str(SPARK_CONTEXT),
            "framework": None,
            "base_image": spark.base_image,
            "build_args": spark.build_args,
            "uri": spark.uri,
        }
    )


def validation_bound(config: BenchmarkConfig, price: Price) -> tuple[float | None, str]:
    """Return the maximum cost of the validation on Spark, and its derivation.

    Returns:
        (USD, or None if the price is unknown; derivation or the reason for None).
    """
    asked = config.validation
    if price.usd_per_hour is None:
        return None, f"no price for a Processing job on {asked.instance_type}: {price.reason}"
    attempts = config.sweep.max_attempts
    usd = attempt_bound_usd(asked, price)
    assert usd is not None
    text = (
        f"the dataset's validation on {_cluster_text(asked)}, including {STOPPING_SECONDS} s to "
        f"stop, x {attempts} attempt{'s' if attempts > 1 else ''} x {price.usd_per_hour} USD/h"
    )
    return attempts * usd, text


def with_validation(
    config: BenchmarkConfig, jobs: tuple[float | None, str], price: Price | None
) -> tuple[float | None, str]:
    """Return a sweep's cost bound and derivation with the dataset's validation included.

    Only a validation that may run as a Processing job adds cost. `jobs` is the bound of the
    training jobs with its derivation; `price` is the price of an instance of the Processing job,
    None if it was not looked up.
    """
    bound, reason = jobs
    if config.dataset is None or not config.dataset.may_use_spark:
        return jobs
    if price is None:
        return bound, (
            f"{reason}; validation on Spark is not included, since only a run looks up its price"
        )
    if bound is None:
        return jobs
    usd, how = validation_bound(config, price)
    if usd is None:
        return None, how
    is_by_size = config.validation.engine == "auto"
    condition = ", if its size requires that" if is_by_size else ""
    return bound + usd, f"{reason}; and {how}{condition}"


def attempt_bound_usd(asked: ValidationConfig, price: Price) -> float | None:
    """Return the maximum cost of one Processing job in USD; None if the price is unknown."""
    return node_cost_usd(asked.instance_count, asked.max_runtime_seconds + STOPPING_SECONDS, price)


def attempt_budget_problem(
    budget_usd: float | None, asked: ValidationConfig, spent_usd: float, price: Price
) -> str | None:
    """Return why sweep.budget_usd prevents a further Processing job, or None.

    Preflight refuses a budget without a price, so that case is not handled here.
    """
    bound = attempt_bound_usd(asked, price)
    if budget_usd is None or bound is None or spent_usd + bound <= budget_usd * (1 + _ROUNDING):
        return None
    return (
        f"sweep.budget_usd: {budget_usd:.2f} USD; the validation of the dataset has cost "
        f"{spent_usd:.2f} so far, and another Processing job can cost {bound:.2f} more; raise "
        "it, or lower dataset.validation.max_runtime_seconds or instance_count"
    )


def validation_usd(provenance: Mapping[str, Any]) -> float | None:
    """Return the recorded cost of a Spark validation; None if there was none or it is unknown."""
    usd = (provenance.get("dataset_validation") or {}).get("usd")
    return float(usd) if isinstance(usd, int | float) else None


def _cluster_text(asked: ValidationConfig) -> str:
    return (
        f"{asked.instance_count} x {asked.instance_type} for at most {asked.max_runtime_seconds} s"
    )


def _gigabytes(size_bytes: int) -> str:
    three_digits = float(f"{size_bytes / _GIGABYTE:.3g}")
    return f"{three_digits:,.10g} GB"
