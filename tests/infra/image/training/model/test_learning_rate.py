from __future__ import annotations

import pytest
from training.errors import UserError
from training.model.learning_rate import scaled_learning_rate


def test_a_rule_scales_with_the_global_batch() -> None:
    assert scaled_learning_rate(0.1, "none", 1024, None) == 0.1
    assert scaled_learning_rate(0.1, "linear", 1024, 256) == pytest.approx(0.4)
    assert scaled_learning_rate(0.1, "sqrt", 1024, 256) == pytest.approx(0.2)
    assert scaled_learning_rate(0.1, "linear", 128, 256) == pytest.approx(0.05)


def test_a_rule_needs_the_batch_that_the_rate_is_meant_for() -> None:
    with pytest.raises(UserError, match="--learning-rate-rule sqrt needs --base-global-batch-size"):
        scaled_learning_rate(0.1, "sqrt", 1024, None)
