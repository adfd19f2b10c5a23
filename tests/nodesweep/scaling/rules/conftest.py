"""What the rules find of a small config with some sections changed."""

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
    """check_config(training={…}, sweep={…}): of the small valid config with that merged into its
    sections.
    """
    return lambda **sections: offline.check(facts_of(make_config(**sections)))


@pytest.fixture
def check(
    make_config: Callable[..., BenchmarkConfig],
) -> Callable[..., tuple[list[str], list[str]]]:
    """check(distribution, instance type, image section, node counts, further training fields) ->
    (problems, hints).
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
