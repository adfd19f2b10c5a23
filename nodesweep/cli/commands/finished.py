"""Serve `nodesweep run --resume SWEEP_ID --as-started` from the local report of a finished sweep.

This needs only the reports directory, whichever platform the sweep ran on. Without `--as-started`,
a run also checks whether code, data and image have changed, which needs the platform.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodesweep.cli.commands.sweeps import read_facts
from nodesweep.scaling import names
from nodesweep.scaling.secrets import hide_in_config

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.report import ScalingReport


def finished_report(config: BenchmarkConfig, sweep: str) -> ScalingReport | None:
    """Return the local report of a finished sweep if resuming would only reproduce it.

    Returns:
        The report; None if resuming might run jobs, need the platform, or produce a different
        report.
    """
    directory = Path(config.report.directory)
    folder = directory / sweep
    if not names.sweep_matches(sweep, config) or not (folder / names.REPORT_HTML).is_file():
        return None
    facts, report, recorded = read_facts(directory, sweep)
    if facts.state != "finished" or report is None or recorded is None:
        return None
    is_remote = config.dataset is not None and config.dataset.is_remote
    # a resume may repeat the contended points of a finished sweep: docs/recommendation.md
    is_contended = any("starved" in row.flags for row in report.summary)
    if is_remote or is_contended or report.instances is not None or report.sweep_id != sweep:
        return None
    if report.config is None or _without_port(report.config) != _without_port(
        hide_in_config(config)
    ):
        return None
    made_by = report.provenance.get("versions")
    is_ours = isinstance(made_by, dict) and made_by.get("nodesweep") == version("nodesweep")
    return report if is_ours else None


def _without_port(config: Any) -> dict[str, Any]:
    """Return the config without the platform's port, which may differ from run to run."""
    return {**config, "platform": {**config["platform"], "endpoint_url": None}}
