from __future__ import annotations

import os

import pytest

from sagemaker_emulator.engine.host.capacity import (
    capacity_problem,
    machine_cores,
    omp_threads,
)


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
        problem.startswith("Unable to provision requested ML compute capacity.")
        and instance_type in problem
    )


def test_a_node_has_a_thread_at_least():
    assert [omp_threads(vcpus) for vcpus in (0.2, 0.5, 1.0, 2.5)] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"own/cpu.max": "max 100000\n", "cpu.max": "250000 100000\n"}, 2.5),
        ({"own/cpu.max": "50000 100000\n", "cpu.max": "250000 100000\n"}, 0.5),
        ({"own/cpu.cfs_quota_us": "-1\n", "own/cpu.cfs_period_us": "100000\n"}, 16),
        ({"cpu.cfs_quota_us": "200000\n", "cpu.cfs_period_us": "100000\n"}, 2),
        ({"own/cpu.max": "3200000 100000\n"}, 16),
    ],
)
def test_quota_of_an_enclosing_container_counts(tmp_path, monkeypatch, files, cores):
    (tmp_path / "own").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert machine_cores([tmp_path / "own", tmp_path]) == cores


def test_fractional_cores_are_said():
    problem = capacity_problem("ml.local.small", 13, 2.5)
    assert "2.6 vCPUs" in problem and problem.endswith(" 2.5.")


def test_cores_of_this_machine():
    assert 0 < machine_cores() <= len(os.sched_getaffinity(0))
