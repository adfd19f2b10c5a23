"""Jobs that fit next to each other, and the CPUs that their nodes run on."""

from __future__ import annotations

import pytest

from sagemaker_emulator.engine.host.room import Room

SMALL, MEDIUM, LARGE = "ml.local.small", "ml.local.medium", "ml.local.large"
MUCH_MEMORY = 1 << 50


@pytest.fixture
def room():
    return Room(2, [0, 1], MUCH_MEMORY)


def test_vcpus_of_all_jobs_may_be_the_machines_cores(room):
    assert room.take("eight", SMALL, 8)
    assert room.take("one", SMALL, 1)
    assert room.take("another", SMALL, 1)  # 10 x 0.2
    assert not room.fits(SMALL, 1)
    assert not room.take("more", SMALL, 1)
    room.release("one")
    assert room.take("more", SMALL, 1)


def test_nodes_go_where_least_is_used(room):
    assert room.take("a", LARGE, 1)
    assert room.take("b", SMALL, 3)
    assert (room.cpus("a"), room.cpus("b")) == ([0], [1, 1, 1])


def test_alone_nodes_go_round_the_cpus():
    room = Room(3, [2, 5, 7], MUCH_MEMORY)
    assert room.take("a", SMALL, 7)
    assert room.cpus("a") == [2, 5, 7, 2, 5, 7, 2]


def test_node_needs_its_vcpus_on_one_cpu(room):
    """1.2 of 2 cores are free, but neither core is completely free."""
    assert room.take("a", SMALL, 4)
    assert not room.fits(LARGE, 1)
    assert room.fits(MEDIUM, 2)


def test_quota_of_the_machine_counts_beside_its_cpus():
    room = Room(1.5, [0, 1], MUCH_MEMORY)
    assert room.take("a", LARGE, 1)
    assert room.take("b", MEDIUM, 1)
    assert not room.fits(SMALL, 1)


def test_memory_limits_of_all_jobs_fit_into_the_machine():
    room = Room(2, [0, 1], 20 << 30)
    assert room.take("a", SMALL, 8)  # 16 GiB
    assert room.take("b", SMALL, 1)
    assert room.fits(SMALL, 1)
    assert not room.fits(MEDIUM, 1)


def test_job_alone_is_never_refused():
    """Memory limits are not reservations: eight nodes of 2 GiB run on a machine with 8 GiB."""
    room = Room(2, [0, 1], 8 << 30)
    assert room.take("a", SMALL, 8)
    assert not room.fits(SMALL, 1)


def test_name_that_is_there_has_to_wait(room):
    """Jobs with the same name in two regions would share folders and networks."""
    assert room.take("a", SMALL, 1)
    assert not room.take("a", SMALL, 1)
    assert "a" in room


def test_most_jobs_is_of_the_smallest(room):
    assert room.most_jobs == 20
    assert Room(0.1, [0], MUCH_MEMORY).most_jobs == 1
