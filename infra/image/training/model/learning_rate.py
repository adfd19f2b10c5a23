"""The learning rate for the global batch in use."""

from __future__ import annotations

import math

from training.errors import UserError

RULES = ("none", "linear", "sqrt")


def scaled_learning_rate(
    rate: float, rule: str, global_batch_size: int, base_global_batch_size: int | None
) -> float:
    """`rate` is meant for `base_global_batch_size`; k times the batch makes it k (linear) or
    sqrt(k) times as big.

    linear: Goyal et al. 2017 (arXiv 1706.02677), with warm-up; sqrt: Krizhevsky 2014 (arXiv
    1404.5997).
    """
    if rule == "none":
        return rate
    if base_global_batch_size is None:
        raise UserError(
            f"--learning-rate-rule {rule} needs --base-global-batch-size: the batch that"
            " --learning-rate is meant for"
        )
    factor = global_batch_size / base_global_batch_size
    return rate * (factor if rule == "linear" else math.sqrt(factor))
