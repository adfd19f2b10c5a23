"""Findings of the rules for a small config with some sections changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.rules import offline
from nodesweep.scaling.rules.rule import Findings
from tests.nodesweep.scaling.rules.facts import check_distribution, facts_of


@pytest.fixture
def check_config(make_config: Callable[..., BenchmarkConfig]) -> Callable[..., Findings]:
    """Return a function that finds problems in the small valid config with changed sections.

    `check_config(training={…}, sweep={…})`
    """
    return lambda **sections: offline.check(facts_of(make_config(**sections)))


@pytest.fixture
def check(
    make_config: Callable[..., BenchmarkConfig],
) -> Callable[..., tuple[list[str], list[str]]]:
    """Return a function that evaluates a distribution and returns (problems, hints).

    `check(distribution, instance type, image section, node counts, **training)`
    """

    def run(
        distribution: dict[str, Any],
        instance_type: str,
        image: dict[str, Any] | None = None,
        nodes: tuple[int, ...] = (1, 2),
        **training: Any,
    ) -> tuple[list[str], list[str]]:
        training |= {"distribution": distribution, "instance_type": instance_type}
        sections = {"image": image} if image else {}
        return check_distribution(
            facts_of(make_config(training=training, sweep={"node_counts": list(nodes)}, **sections))
        )

    return run
