"""Asking the rules about one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from configs.catalogue import load_catalogue
from configs.models import BenchmarkConfig
from scaling.rules.distribution import check_distribution


@pytest.fixture
def check(make_config: Callable[..., BenchmarkConfig]) -> Callable[..., tuple[list[str], list[str]]]:
    """check(distribution, instance type, image section, node counts, further training fields) -> (problems, hints)."""

    def run(
        distribution: dict[str, Any],
        instance_type: str,
        image: dict[str, Any] | None = None,
        nodes: tuple[int, ...] = (1, 2),
        **training: Any,
    ) -> tuple[list[str], list[str]]:
        training |= {"distribution": distribution, "instance_type": instance_type}
        sections = {"image": image} if image else {}
        config = make_config(training=training, sweep={"node_counts": list(nodes)}, **sections)
        return check_distribution(config, load_catalogue().get(instance_type))

    return run
