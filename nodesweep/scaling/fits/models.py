"""The models of the fitted scaling laws in report.json, which docs/fits.md explains."""

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

    name: str = Field(description="Symbol of the parameter in the law's equation.")
    value: float = Field(description="Least-squares estimate.")
    interval: Interval | None = Field(
        description=(
            "95% interval from the fit's covariance and Student's t, cut off at the parameter's"
            " bounds; null if unknown, for the reason in `no_interval`."
        )
    )
    no_interval: str | None = Field(description=("Why there is no interval; null if there is one."))
    unit: str | None = Field(
        description=(
            "Unit of the value; null for a pure number. Seconds are per run, or per sample if "
            "`meaning` says so."
        )
    )
    on_bound: bool = Field(
        description="True if the value is at a bound that the fit must not cross."
    )
    meaning: str = Field(description="Meaning of the parameter.")


class LawFit(Part):
    """One law, fitted to the node-time N x T(N)."""

    law: Law = Field(description="Name of the law.")
    equation: str = Field(
        description="Equation of the law for the node-time N·T(N), in node-seconds."
    )
    parameters: tuple[Parameter, ...] = Field(description="Fitted parameters of the law.")
    leave_one_out_error: float | None = Field(
        description=(
            "Root mean square relative error when each point is predicted from a fit to the others"
            " (of more than 100 points, only 100 evenly spaced ones are predicted); null if there"
            " are too few points to leave one out."
        )
    )
    relative_residual_rms: float = Field(
        description="Root mean square of (fitted - observed)/observed."
    )
    identifiable: Verdict = Field(
        description=(
            "Verdict on whether the points determine this law's parameters: there are at least two "
            "more points than parameters, no value is at a bound, and no interval includes 0. The "
            "intervals of sigma and alpha can include 0 if their upper bound is at most 0.1."
        )
    )
    peak_nodes: float | None = Field(
        description=(
            "N* = sqrt((1 - alpha)/beta) of usl, at least 1. More nodes than this are slower. Null "
            "if the interval of beta includes 0 or is unknown, and for the other laws, which have "
            "no peak."
        )
    )

    def predict(self, nodes: float, steps_ratio: float | None = None) -> float:
        """Return the predicted seconds at `nodes`, per run or per sample like the fitted points.

        Args:
            nodes: Node count, at least 1.
            steps_ratio: Ratio of the optimizer steps at `nodes` to the steps at N0. Only `ring`
                needs it.

        Raises:
            ValueError: `nodes` is below 1, or `ring` has no steps_ratio.
        """
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}; allowed: at least 1")
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
                "steps_ratio is None; ring needs the ratio of the optimizer steps at "
                f"{nodes:g} nodes to the steps at N0"
            )
        return (value["t_compute"] + value["c"] * steps_ratio * others) / nodes


class Extrapolation(Part):
    """The predictions at twice the largest measured node count, if the runs support them.

    An unsupported prediction has no number (docs/fits.md, "Beyond the measured counts"). Seconds
    are per run or, if the fitted points are rates, per sample.
    """

    nodes: int | None = Field(
        description="Node count of the prediction, twice the largest measured one; null if there "
        "are no points."
    )
    supported: Verdict = Field(
        description=(
            "Verdict on whether the runs support a prediction at `nodes`; if they don't, the "
            "reason says which measurements are needed."
        )
    )
    law: Law | None = Field(
        default=None, description="The law behind the prediction; null if not supported."
    )
    train_seconds: float | None = Field(
        description=(
            "Predicted geometric mean, from the best-ranked identifiable law that the runs do not "
            "reject; null if not supported."
        )
    )
    interval: Interval | None = Field(
        default=None,
        description=(
            "95% interval of that mean if one of the laws or a sum of their terms holds: all "
            "predictions of the laws and sums that fit within the noise of the runs. It does not "
            "account for a change beyond the measured node counts. Null if not supported."
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
            "Minimum and maximum of the predictions of the best identifiable law when one point is "
            "left out (of more than 100 points, one of 100 evenly spaced ones); null if not "
            "supported."
        )
    )


class Fits(Part):
    """All fitted laws, and the extrapolation."""

    laws: tuple[LawFit, ...] = Field(description="Fitted laws, smallest leave-one-out error first.")
    left_out: Mapping[Law, str] = Field(
        description="Laws that were not fitted, each with the reason."
    )
    extrapolation: Extrapolation = Field(
        description="Predictions at twice the largest measured node count."
    )
