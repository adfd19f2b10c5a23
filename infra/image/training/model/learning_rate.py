"""Learning rate scaled to the global batch size in use."""

from __future__ import annotations

import math

from training.errors import UserError

RULES = ("none", "linear", "sqrt")


def scaled_learning_rate(
    rate: float, rule: str, global_batch_size: int, base_global_batch_size: int | None
) -> float:
    """Scale `rate`, tuned for `base_global_batch_size`, to `global_batch_size`.

    A batch k times as large multiplies it by k (linear: Goyal et al. 2017, arXiv 1706.02677, with
    warm-up) or sqrt(k) (sqrt: Krizhevsky 2014, arXiv 1404.5997).

    Raises:
        UserError: A rule is set without the base batch size.
    """
    if rule == "none":
        return rate
    if base_global_batch_size is None:
        raise UserError(
            f"--learning-rate-rule {rule} needs --base-global-batch-size: the global batch size"
            " that --learning-rate was tuned for"
        )
    factor = global_batch_size / base_global_batch_size
    return rate * (factor if rule == "linear" else math.sqrt(factor))
