"""The typed form of fitted scaling laws in report.json.

nodesweep/scaling/fits/ creates them; docs/fits.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.report_part import Part

Law = Literal["amdahl", "usl", "ring"]


class Verdict(Part):
    """A decision with its reason."""

    value: bool = Field(description="The decision.")
    reason: str = Field(description="The reason, with the numbers behind it.")


class Parameter(Part):
    """One fitted parameter of a law."""

    name: str = Field(description="Its symbol in the law's equation.")
    value: float = Field(description="Least-squares estimate.")
    interval: Interval | None = Field(
        description=(
            "95% interval from the fit's covariance and Student's t, cut off at the parameter's"
            " bounds; null: there is none, see `no_interval`."
        )
    )
    no_interval: str | None = Field(description=("Why there is no interval; null if there is one."))
    unit: str | None = Field(
        description=(
            "Unit of the value; null: a pure number. Seconds are per run, or per sample if "
            "`meaning` says so."
        )
    )
    on_bound: bool = Field(
        description="True if the data pull it past its bound, where the fit stopped it."
    )
    meaning: str = Field(description="Meaning of the parameter.")


class LawFit(Part):
    """One law fitted to node-time N x T(N)."""

    law: Law = Field(description="The law.")
    equation: str = Field(
        description="The law in its parameters, as node-time N·T(N) in node-seconds."
    )
    parameters: tuple[Parameter, ...] = Field(description="The fitted numbers.")
    leave_one_out_error: float | None = Field(
        description=(
            "Root mean square relative error of predicting each point (of more than 100, of 100"
            " evenly spaced ones) from a fit to the others; null: too few points to fit without"
            " one."
        )
    )
    relative_residual_rms: float = Field(
        description="Root mean square of (fitted - observed)/observed."
    )
    identifiable: Verdict = Field(
        description=(
            "Decision whether the points determine this law's parameters, so that each interval "
            "excludes 0 or more than a tenth of one node's time."
        )
    )
    peak_nodes: float | None = Field(
        description=(
            "N* = sqrt((1 - alpha)/beta) of usl, at least 1: beyond it, more nodes are slower. "
            "Null if beta's interval does not exclude 0, and for the other laws, which have no "
            "peak."
        )
    )

    def predict(self, nodes: float, steps_ratio: float | None = None) -> float:
        """Return the seconds at `nodes`, per run or per sample as for the fitted points.

        Args:
            nodes: Node count, at least 1.
            steps_ratio: Steps at `nodes` / steps at N0, which only `ring` needs.

        Raises:
            ValueError: `nodes` is below 1, or `ring` has no steps_ratio.
        """
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}; a law needs at least 1 node")
        value = {parameter.name: parameter.value for parameter in self.parameters}
        others = nodes - 1
        if self.law == "amdahl":
            return value["t1"] * (1 + value["sigma"] * others) / nodes
        if self.law == "usl":
            return (
                value["t1"] * (1 + value["alpha"] * others + value["beta"] * nodes * others) / nodes
            )
        if steps_ratio is None:
            raise ValueError(
                f"steps_ratio is None; ring needs the steps at {nodes:g} nodes over those at N0"
            )
        return (value["t_compute"] + value["c"] * steps_ratio * others) / nodes


class Extrapolation(Part):
    """The laws' predictions at twice the largest measured node count, if they are supported.

    Unsupported predictions have no number (docs/fits.md, "Beyond the measured counts"). The seconds
    are like those of the fitted points: per run, or per sample for rates.
    """

    nodes: int | None = Field(
        description="Twice the largest node count, the furthest a law is extrapolated; null: no "
        "points."
    )
    supported: Verdict = Field(
        description=(
            "Decision whether the runs support a prediction there; if not, the reason says what "
            "is needed."
        )
    )
    law: Law | None = Field(
        default=None, description="The law behind the prediction; null if not supported."
    )
    train_seconds: float | None = Field(
        description=(
            "Predicted median, from the best-ranked identifiable law that the runs do not reject; "
            "null if not supported."
        )
    )
    interval: Interval | None = Field(
        default=None,
        description=(
            "95% interval of the median there if one of the laws or a sum of their terms holds: "
            "all values of those that fit within the noise of the runs. It does not account for "
            "a change beyond the measured node counts. Null if not supported."
        ),
    )
    assumes: str | None = Field(
        default=None,
        description=(
            "The prediction's assumption about nodes that were not measured; null if not supported."
        ),
    )
    by_law: Mapping[Law, float] = Field(
        description="Prediction of each fitted law, in seconds; empty if not supported."
    )
    leave_one_out_seconds: tuple[float, float] | None = Field(
        description=(
            "Minimum and maximum that the best identifiable law predicts when any one point is "
            "left out (of more than 100 points, any of 100 evenly spaced ones); null if not "
            "supported."
        )
    )


class Fits(Part):
    """All fitted laws, and the extrapolation."""

    laws: tuple[LawFit, ...] = Field(description="Fitted laws, smallest leave-one-out error first.")
    left_out: Mapping[Law, str] = Field(
        description="Laws that were not fitted, each with the reason."
    )
    extrapolation: Extrapolation = Field(description="Twice the largest node count.")
