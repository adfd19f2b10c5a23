from __future__ import annotations

import pytest

from infra.local.engine.capacity import capacity_problem, omp_threads


@pytest.mark.parametrize(
    ("instance_type", "count", "cores", "fits"),
    [
        ("ml.local.small", 8, 2, True),
        ("ml.local.small", 10, 2, True),
        ("ml.local.small", 11, 2, False),
        ("ml.local.medium", 4, 2, True),
        ("ml.local.medium", 5, 2, False),
        ("ml.local.large", 2, 2, True),
        ("ml.local.large", 3, 2, False),
        ("ml.p3.16xlarge", 1, 64, False),
    ],
)
def test_capacity(instance_type, count, cores, fits):
    problem = capacity_problem(instance_type, count, cores)
    assert (problem is None) is fits
    assert fits or (
        problem.startswith("Unable to provision requested ML compute capacity.") and instance_type in problem
    )


def test_a_node_has_a_thread_at_least():
    assert [omp_threads(vcpus) for vcpus in (0.2, 0.5, 1.0, 2.5)] == [1, 1, 1, 2]
