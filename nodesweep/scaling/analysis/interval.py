"""The model of an interval, in a module that does not import SciPy."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from nodesweep.scaling.report_part import Part

LEVEL = 0.95
# One run shows no spread. With two, Student's t is 12.7, which is too wide to be useful.
MIN_REPEATS = 3


class Interval(Part):
    """A confidence interval in the unit of its value; low <= high."""

    low: float = Field(description="Lower bound.")
    high: float = Field(description="Upper bound.")
    level: float = Field(
        default=LEVEL,
        gt=0,
        lt=1,
        description=(
            "Confidence level: 0.95, or 0.9 if failed attempts are included. Older reports have "
            "lower levels for 3 to 5 runs."
        ),
    )
    one_sided: tuple[float, float] | None = Field(
        default=None,
        exclude_if=lambda bounds: bounds is None,
        description=(
            "Lower and upper bound that are compared with limits, each wrong in at most 5% of "
            "sweeps. If absent, `low` and `high` are compared."
        ),
    )

    @property
    def bounds(self) -> tuple[float, float]:
        """The lower and the upper bound that are compared with limits."""
        return self.one_sided or (self.low, self.high)

    def contains(self, value: float) -> bool:
        """Return True if the value is in the interval, including its bounds."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> Interval:
        """Return the interval of `factor` (> 0) times the value.

        For example, N0/N converts the interval of a speedup to the interval of the efficiency.
        """
        low, high = self.bounds
        return Interval(
            low=self.low * factor,
            high=self.high * factor,
            level=self.level,
            one_sided=None if self.one_sided is None else (low * factor, high * factor),
        )


def welch_freedom(shares: Sequence[float], counts: Sequence[int]) -> float:
    """Return the degrees of freedom of a difference of means (Welch, Biometrika 34, 1947).

    Args:
        shares: Shares of the two means in the variance of the difference, which sum to 1.
        counts: Number of values behind each mean, at least 2.
    """
    return 1 / sum(share**2 / (count - 1) for share, count in zip(shares, counts, strict=True))
