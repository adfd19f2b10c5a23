"""Read the passes at smaller batches that the shipped program timed after a run on one node.

infra/image/training/measuring/passes.py times a forward and backward pass of each batch in several
rounds. A smaller batch's ratio is its time over that of the whole batch in the same round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import median, stdev
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nodesweep.scaling.outcome.metrics_values import nested_value

TIME_PASSES = "NODESWEEP_TIME_PASSES"
"""Environment variable with the batches whose passes the shipped program times."""
_LEAST_ROUNDS = 3
_ERROR_OF_MEDIAN = 1.25
"""Standard error of the median of normal values, as a multiple of that of their mean."""
_Seconds = Annotated[float, Field(ge=1e-9, le=1e6)]


class PassRatio(NamedTuple):
    """Time of a pass as a share of that of the whole batch, with its relative standard error.

    `whole` is the timed pass of the whole batch as a share of the mean pass of the run, which can
    take longer because the rest of a step displaces its data from the caches.
    """

    ratio: float
    error: float
    whole: float


class _SizePasses(BaseModel):
    model_config = ConfigDict(strict=True)

    samples: int = Field(gt=0, le=10**9)
    seconds: list[_Seconds] = Field(min_length=_LEAST_ROUNDS, max_length=1000)


class _Parts(BaseModel):
    model_config = ConfigDict(strict=True)

    forward: _Seconds
    backward: _Seconds


class _Budget(BaseModel):
    model_config = ConfigDict(strict=True)

    seconds: _Parts


class TimedPasses(BaseModel):
    """The entries of metrics.json on timed passes, which begin with the whole batch."""

    model_config = ConfigDict(strict=True, frozen=True)

    passes: list[_SizePasses] = Field(min_length=2, max_length=1000)
    passes_seconds: _Seconds
    """Seconds that the timing took; they are billed, but not part of T."""
    steps: int = Field(gt=0)
    budget: list[_Budget] = Field(min_length=1, max_length=1)

    @model_validator(mode="after")
    def _check_rounds(self) -> Self:
        if any(one.samples <= other.samples for one, other in pairwise(self.passes)):
            raise ValueError("passes: the batches are not descending")
        if len({len(each.seconds) for each in self.passes}) > 1:
            raise ValueError("passes: the batches have different numbers of rounds")
        return self

    @property
    def ratios(self) -> dict[int, PassRatio]:
        """The smaller batches' ratios by number of samples.

        A pass on fewer samples takes no longer: if it did, something else delayed it.
        """
        whole, *smaller = self.passes
        parts = self.budget[0].seconds
        share = median(whole.seconds) * self.steps / (parts.forward + parts.backward)
        found = {}
        for each in smaller:
            rounds = [min(1.0, a / b) for a, b in zip(each.seconds, whole.seconds, strict=True)]
            middle = median(rounds)
            error = _ERROR_OF_MEDIAN * stdev(rounds) / math.sqrt(len(rounds))
            found[each.samples] = PassRatio(middle, error / middle, share)
        return found


def read_timed_passes(metrics: Mapping[str, Any] | None) -> TimedPasses | None:
    """Return the timed passes of a run; None if there are none, or if they are not usable.

    They are usable if the run had a single process, whose whole batch is the largest one timed.
    """
    if nested_value(metrics, ("passes",)) is None:
        return None
    try:
        timed = TimedPasses.model_validate(metrics)
    except ValidationError:
        return None
    is_alone = nested_value(metrics, ("world", "world_size")) == 1
    size = nested_value(metrics, ("batch", "global_batch_size"))
    return timed if is_alone and size == timed.passes[0].samples else None
