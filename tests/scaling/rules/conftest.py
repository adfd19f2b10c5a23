"""Plans of a small config with some sections changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from configs.catalogue import load_catalogue
from configs.models import BenchmarkConfig
from scaling.planning.plan import SweepPlan, plan_sweep


@pytest.fixture
def plan_of(make_config: Callable[..., BenchmarkConfig]) -> Callable[..., SweepPlan]:
    """plan_of(training={…}, sweep={…}) plans the small valid config with that merged into its sections."""

    def plan(**sections: Any) -> SweepPlan:
        config = make_config(**sections)
        return plan_sweep(config, load_catalogue().get(config.training.instance_type))

    return plan
