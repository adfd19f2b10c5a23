"""Questions to the online rules, with stubbed or mocked clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from configs.catalogue import load_catalogue
from configs.models import BenchmarkConfig
from tasks.preflight.rule import Question

ROLE = "arn:aws:iam::123456789012:role/training"


def question(config: BenchmarkConfig, client: Callable[..., Any], peak_nodes: int = 2) -> Question:
    return Question(config, load_catalogue().get(config.training.instance_type), peak_nodes, client)


def clients(**by_service: Any) -> Callable[..., Any]:
    """clients(ec2=…): those clients, whatever the region."""
    return lambda service, region="us-east-1": by_service[service]
