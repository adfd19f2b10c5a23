"""A sweep against the last good one of the same config:
an established regression is an event and a failure.
"""

from __future__ import annotations

import logging

from configs.models import BenchmarkConfig
from scaling import names
from scaling.design.of_sweep import is_complete
from scaling.report import ScalingReport
from scaling.trend.compare import Comparison, ComparisonError, compare
from scaling.trend.compare_render import render_comparison_markdown
from scaling.trend.report_file import ReportUnreadable, parse_report
from tasks.errors import RegressionEstablished
from tasks.report.publish import announce_regression, publish_comparison
from tasks.storage import put_objects
from tasks.sweeps.records import list_sweeps_of, read_report_file

logger = logging.getLogger("nodesweep.regression")
_LOOK_BACK = 30  # sweeps
_ALLOWED = frozenset({"image_uri", "code"})
"""What a nightly run is there to judge: the conditions that may differ from the sweep before."""


def alarm_on_regression(
    config: BenchmarkConfig, report: ScalingReport, tolerance: float
) -> Comparison | None:
    """Compare with the last good sweep, keep the comparison in the bucket;
    None where there is no good one yet.

    Raises RegressionEstablished, once the event is sent.
    """
    before = last_good_report(config, report.sweep_id)
    if before is None:
        logger.info(
            "no good sweep of this config before %s: nothing to compare with", report.sweep_id
        )
        return None
    try:
        comparison = compare(before, report, tolerance, _ALLOWED)
    except ComparisonError as error:
        logger.warning("%s is not compared with %s: %s", report.sweep_id, before.sweep_id, error)
        return None
    key = names.report_key(config.platform.prefix, report.sweep_id, names.COMPARISON_JSON)
    put_objects(config.platform, {key: comparison.model_dump_json(indent=2).encode() + b"\n"})
    publish_comparison(report.sweep_id, render_comparison_markdown(comparison))
    slower = comparison.regressions or comparison.lost
    if slower:
        message = (
            f"sweep {report.sweep_id} is slower than {before.sweep_id} by more than {tolerance:.0%}"
            f" at node counts {list(comparison.regressions)}"
            + (f", and has no completed run at {list(comparison.lost)}" if comparison.lost else "")
        )
        announce_regression(report.sweep_id, before.sweep_id, message)
        raise RegressionEstablished(message)
    logger.info("no regression against %s", before.sweep_id)
    return comparison


def last_good_report(config: BenchmarkConfig, sweep: str) -> ScalingReport | None:
    """The report of the youngest earlier sweep of this config that completed every point
    and was no regression.
    """
    earlier = [name for name in list_sweeps_of(config) if name < sweep]
    for name in reversed(earlier[-_LOOK_BACK:]):
        body = read_report_file(config.platform, name, names.REPORT_JSON)
        if body is None or _is_regression(config, name):
            continue
        try:
            report = parse_report(body, name)
        except ReportUnreadable as error:
            logger.warning("%s", error)
            continue
        if report.baseline is not None and _has_all_runs(config, report):
            return report
    return None


def _has_all_runs(config: BenchmarkConfig, report: ScalingReport) -> bool:
    if config.sweep.design == "sequential":
        return is_complete(config, report)
    completed = sum(row.n + row.n_spot for row in report.summary)
    return completed == len(config.sweep.node_counts) * config.sweep.repeats


def _is_regression(config: BenchmarkConfig, sweep: str) -> bool:
    body = read_report_file(config.platform, sweep, names.COMPARISON_JSON)
    if body is None:
        return False
    try:
        comparison = Comparison.model_validate_json(body)
    except ValueError as error:  # a night that can't vouch for itself is no reference
        logger.warning(
            "%s of %s can't be read, it is passed over: %s", names.COMPARISON_JSON, sweep, error
        )
        return True
    return bool(comparison.regressions or comparison.lost)
