"""Runs Great Expectations: on Spark for pass or fail, on pandas for reported details."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .comparing import comparable, refused
from .request import Check, JudgeError

LONGEST_TEXT = 200
"""Characters kept of a reported value; a report shows fewer."""
_REPORTED = frozenset(
    {
        *("unexpected_count", "unexpected_percent", "unexpected_percent_total"),
        *("missing_count", "partial_unexpected_list", "observed_value", "details"),
    }
)


def build(checks: Sequence[Check]) -> list[Any]:
    """Return the expectations; each one's `meta` holds its position in `checks`.

    Raises:
        JudgeError: A type or its arguments are invalid.
    """
    import great_expectations as gx  # noqa: F401  (registers the built-in expectations)
    from great_expectations.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.registry import get_expectation_impl

    built = []
    for position, check in enumerate(checks):
        try:
            built.append(
                get_expectation_impl(check.type)(
                    **check.kwargs,
                    severity=FailureSeverity(check.severity),
                    meta={"position": position},
                )
            )
        except (ExpectationNotFoundError, TypeError, ValueError, OverflowError) as error:
            message = f"expectations[{check.index}] {check.type}: {error}"
            raise JudgeError("expectations", message) from error
    return built


def broken_by_file(frame: Any, file: str, checks: Sequence[Check]) -> dict[int, set[int]]:
    """Return, per value of the column `file`, the positions of the `checks` that some row violates.

    All checks must be about single values. One aggregation evaluates Great Expectations' own
    conditions; a check for which it has no condition counts as violated everywhere.
    """
    from pyspark.sql import functions as F

    conditions = _conditions(frame, checks)
    everywhere = set(range(len(checks))) - set(conditions)
    broken = [
        F.max(F.when(breaks, 1).otherwise(0)).alias(f"b{position}")
        for position, breaks in conditions.items()
    ]
    rows = frame.groupBy(file).agg(F.count(F.lit(1)).alias("rows"), *broken).collect()
    return {
        row[file]: everywhere | {position for position in conditions if row[f"b{position}"]}
        for row in rows
    }


def _conditions(frame: Any, checks: Sequence[Check]) -> dict[int, Any]:
    """Return, by the check's position, the Spark condition that matches rows violating a check.

    Checks that Great Expectations rejects are left out. Its other metrics, such as the number of
    rows, are computed on an empty table; otherwise it would read all data for each check.
    """
    from great_expectations.execution_engine import SparkDFExecutionEngine
    from great_expectations.expectations.registry import get_metric_kwargs
    from great_expectations.validator.metric_configuration import MetricConfiguration
    from great_expectations.validator.metrics_calculator import MetricsCalculator

    engine = SparkDFExecutionEngine(persist=False)
    engine.load_batch_data("rows", frame.sparkSession.createDataFrame([], frame.schema))
    metrics = {}
    for position, expectation in enumerate(build(checks)):
        name = f"{expectation.map_metric}.condition"
        kwargs = get_metric_kwargs(name, expectation.configuration)
        metrics[position] = MetricConfiguration(
            name,
            metric_domain_kwargs=kwargs["metric_domain_kwargs"],
            metric_value_kwargs=kwargs["metric_value_kwargs"],
        )
    found, _ = MetricsCalculator(engine).compute_metrics(list(metrics.values()))
    return {
        position: found[metric.id][0] for position, metric in metrics.items() if metric.id in found
    }


def _run_on_pandas(frame: Any, checks: Sequence[Check]) -> list[tuple[int, Any]]:
    """Return (position in `checks`, result) pairs."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    quiet = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        progress_bars=ProgressBarsConfig(globally=False),
    )
    context = gx.get_context(mode="ephemeral", project_config=quiet)
    asset = context.data_sources.add_pandas("files").add_dataframe_asset("file")
    suite = gx.ExpectationSuite(name="checks", expectations=build(checks))
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A batch validates without storing; a stored result of quantiles is not JSON-serializable.
        outcome = batch.validate(
            suite, result_format={"result_format": "SUMMARY", "partial_unexpected_count": 100}
        )
    configured = [(result.expectation_config, result) for result in outcome.results]
    return [
        (config.meta["position"], result)
        for config, result in configured
        if config is not None and config.meta
    ]


def judge_on_pandas(frame: Any, checks: Sequence[Check]) -> dict[int, dict[str, Any] | None]:
    """Return the details to report by check index, None for a check that passes.

    Args:
        frame: The rows to validate, a pandas DataFrame.
        checks: The checks; one without a result is missing from the return value.
    """
    found: dict[int, dict[str, Any] | None] = {
        checks[position].index: {"result": {}, "exception_info": info}
        for position, info in refused(frame, [(it.type, it.kwargs) for it in checks]).items()
    }
    checks = [check for check in checks if check.index not in found]
    if not checks:
        return found
    frame, every = comparable(frame, [(check.type, check.kwargs) for check in checks])
    checks = [replace(check, kwargs=kwargs) for check, kwargs in zip(checks, every, strict=True)]
    return found | {
        checks[position].index: None if result.success else _reported(result)
        for position, result in _run_on_pandas(frame, checks)
    }


def _reported(result: Any) -> dict[str, Any]:
    plain = result.to_json_dict()
    details = plain["result"] if isinstance(plain["result"], dict) else {}
    return {
        "result": {
            name: _short(value) if name == "partial_unexpected_list" else value
            for name, value in details.items()
            if name in _REPORTED
        },
        "exception_info": _without_traceback(result.exception_info),
    }


def _short(values: Any) -> list[Any]:
    """Return plain values with long strings cut; other values become strings, as in a report."""
    plain = [
        value if value is None or isinstance(value, bool | int | float) else str(value)
        for value in values or ()
    ]
    return [value[:LONGEST_TEXT] if isinstance(value, str) else value for value in plain]


def _without_traceback(info: Any) -> Any:
    """Drop the traceback, which names this node's paths."""
    if not isinstance(info, Mapping):
        return None
    kept = {}
    for name, value in info.items():
        if isinstance(value, Mapping):
            kept[str(name)] = _without_traceback(value)
        elif name == "raised_exception":
            kept[name] = bool(value)
        elif name == "exception_message":
            kept[name] = None if value is None else str(value)
    return kept
