"""The SageMaker Python SDK v3's ModelTrainer, unmodified, on two nodes that are containers.

Their image is the base image, since a job with an entry point in its request needs no `train`, only
bash, Python, pip and torch.
"""

from __future__ import annotations

import pytest

from tests.clients.model_source import facts_of
from tests.clients.test_model_trainer import put_table, train
from tests.containers.container_bench import log_of

pytestmark = [pytest.mark.slow, pytest.mark.containers]


def test_two_nodes_under_torchrun(platform, base_image, tmp_path):
    put_table(platform.s3)
    _, job = train(platform, base_image, tmp_path)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    for host in ("algo-1", "algo-2"):
        facts = facts_of(log_of(platform, job["TrainingJobName"], host))
        seen = [facts[name] for name in ("sum", "world", "host", "name", "folder", "title", "rows")]
        assert seen == ["3", "2", host, host, "/opt/ml/input/data/code", "two words", "2"]
