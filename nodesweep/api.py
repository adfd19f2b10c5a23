"""nodesweep from Python: load a config, plan and run it, and read reports and their history.

    import nodesweep

    config = nodesweep.load_config("local", ["sweep.node_counts=[1,2,4]"])
    nodesweep.plan(config).points()          # submits nothing
    report = nodesweep.run(config)
    report.summary()[["nodes", "speedup", "efficiency"]]
    report.plot("speedup")

Every table is a pandas DataFrame with units in its column names; unknown values are missing. An
invalid config raises ConfigError, a refused plan raises PreflightRefused, and a failed run raises
NodesweepError. The commands print the same messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.analysis.advice import Recommendation
    from nodesweep.scaling.names import PlotKind
    from nodesweep.scaling.planning.plan import PlannedPoint
    from nodesweep.scaling.report.model import ScalingReport

__all__ = ["Plan", "Report", "history", "load_config", "plan", "read_report", "run"]


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep and their maximum cost, before anything is submitted."""

    planned: tuple[PlannedPoint, ...]
    """The runs, in execution order."""
    cost_bound_usd: float | None
    """Maximum cost of the sweep; None if unknown. `cost_bound_reason` explains the value."""
    cost_bound_reason: str
    notices: tuple[str, ...]
    """Notices from preflight."""

    def points(self) -> DataFrame:
        """Return one row per planned run, in execution order.

        Columns: nodes, repeat, order, seed, world_size, global_batch_size, per_replica_batch_size
        (samples), accumulate_grad_batches, learning_rate, and instance_type or, if the sweep
        compares variants, variant.
        """
        from pandas import DataFrame

        arms = [point.arm for point in self.planned]
        frame = DataFrame([asdict(point) for point in self.planned], dtype=object)
        frame = frame.drop(columns="arm").astype("Int64", errors="ignore")
        frame["learning_rate"] = frame["learning_rate"].astype("Float64")
        column = "variant" if any(arm.is_variant for arm in arms) else "instance_type"
        frame[column] = DataFrame({column: [arm.name for arm in arms]}, dtype="string")[column]
        return frame


class Report:
    """The report on a sweep or on a table of measured times."""

    def __init__(self, data: ScalingReport) -> None:
        self.data = data
        """The content of report.json as a typed object; see docs/report.schema.json."""

    @property
    def sweep_id(self) -> str:
        """The sweep's id."""
        return self.data.sweep_id

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return self.data.headline

    @property
    def recommendation(self) -> Recommendation | None:
        """The recommended node count and the reasons for it; None if too few runs completed."""
        return self.data.recommendation

    @property
    def caveats(self) -> tuple[str, ...]:
        """The limitations of these numbers, one sentence each."""
        return self.data.caveats

    def points(self) -> DataFrame:
        """Return one row per attempt, failed ones included, with the columns of points.csv."""
        from nodesweep.scaling.report.frames import points_frame

        return points_frame(self.data)

    def summary(self) -> DataFrame:
        """Return one row per node count: times, speedup, efficiency and cost with their intervals.

        docs/python.md lists the columns. With several instance types, the rows are those of the
        main type.
        """
        from nodesweep.scaling.report.frames import summary_frame

        return summary_frame(self.data)

    def plot(self, kind: PlotKind = "speedup") -> Figure:
        """Return a plot of the report as a matplotlib figure.

        Args:
            kind: speedup, efficiency, cost or phases; also parts if the report has a `step_budget`,
                and types and frontier if the sweep has several instance types.

        Raises:
            ValueError: The report does not have this plot; the message lists the available ones.
        """
        drawing = self._drawings.get(kind)
        if drawing is None:
            has = ", ".join(self._drawings) or "none, because no run completed"
            raise ValueError(f"plot {kind!r} is not in this report; available plots: {has}")
        return drawing.figure

    @cached_property
    def _drawings(self) -> dict[PlotKind, Any]:
        from nodesweep.scaling.report.plots import draw_plots, drawing_style

        with drawing_style():
            return draw_plots(self.data)

    def _repr_html_(self) -> str:
        """Show the headline and the summary in a notebook."""
        from html import escape

        return f"<p>{escape(self.headline)}</p>{self.summary().to_html(index=False, na_rep='')}"

    def __repr__(self) -> str:
        return f"<Report {self.sweep_id}: {self.headline}>"


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> BenchmarkConfig:
    """Return the config from a YAML or JSON file, or from a shipped preset such as "local".

    Args:
        path: File or preset.
        overrides: `section.field=value`, as for `--set`.

    Raises:
        ConfigError: The config is invalid; the message lists every problem with its field, its
            value and the allowed values.
    """
    from nodesweep.cli.inputs import read_config

    return read_config(Path(path), tuple(overrides))


def plan(config: BenchmarkConfig) -> Plan:
    """Return the runs that a sweep would consist of, without submitting anything or calling AWS.

    Raises:
        PreflightRefused: The config violates a preflight rule.
    """
    from nodesweep.cli.commands.plan import plan_of
    from nodesweep.flows.stages.offline import raise_if_refused

    checked = plan_of(config)
    raise_if_refused(checked)
    made = checked.facts.plan
    return Plan(
        tuple(point for point in made.points if config.sweep.may_run(point.nodes, point.repeat)),
        made.cost_bound_usd,
        made.cost_bound_reason,
        tuple(checked.findings.notices),
    )


def run(config: BenchmarkConfig, *, resume: str | None = None) -> Report:
    """Run a benchmark as `nodesweep run` does, and return its report once it has ended.

    Call it from the main thread, so that signals stop the sweep in an orderly way. On AWS, nodes
    cost money; set `sweep.budget_usd` to limit the cost.

    Args:
        config: The benchmark to run.
        resume: Id of an unfinished sweep of this config to resume.

    Raises:
        PreflightRefused: The config violates a preflight rule; nothing was started.
        PointsMissing: Fewer than `sweep.min_points` points completed; `result.report` contains the
            completed ones.
        NodesweepError: The run failed; `nodesweep list` shows the state of the sweep.
    """
    from nodesweep.configs.load import check_directories

    if resume is None:
        check_directories(config)
    from nodesweep.cli.session import flow_session, run_flow

    with flow_session(config.platform, modules=("nodesweep.flows.scaling_benchmark",)) as platform:
        from nodesweep.flows.scaling_benchmark import check_points, scaling_benchmark

        benchmark = config.on_platform(platform)
        result = run_flow(
            scaling_benchmark,
            benchmark,
            sweep_id=resume,
            resume=resume is not None,
            as_started=False,
        )
        check_points(benchmark.sweep, result)
    return Report(result.report)


def read_report(path: str | os.PathLike[str]) -> Report:
    """Return the report of a sweep.

    Args:
        path: A report.json or its folder, or the id of a sweep under `reports/`.

    Raises:
        ReportUnreadable: The report is missing, damaged or has a different schema version.
    """
    from nodesweep.cli.commands.compare import find_report
    from nodesweep.cli.inputs import config_of_sweep

    return Report(
        find_report(
            os.fspath(path),
            Path("reports"),
            lambda sweep: config_of_sweep(sweep, None, None).platform,
        )
    )


def history(config: BenchmarkConfig, benchmark: str | None = None) -> DataFrame:
    """Return the history of a benchmark from the bucket: one row per attempt, oldest sweep first.

    docs/history.md lists the columns.

    Args:
        config: The config that names the bucket.
        benchmark: Name of the benchmark; None for the name in the config.

    Raises:
        HistoryError: The bucket has no readable history of the benchmark.
    """
    from pandas import concat

    from nodesweep.cli.commands.history import read_frames
    from nodesweep.scaling.trend.history import HistoryError

    name = benchmark or config.name
    frames = read_frames(config, name)
    if not frames:
        raise HistoryError(f"none of the history files of {name!r} can be read")
    return concat(frames, ignore_index=True)
