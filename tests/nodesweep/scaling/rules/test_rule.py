"""Properties of the facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodesweep.scaling.rules.rule import Files, Requirements
from tests.nodesweep.scaling.rules.facts import facts_of


def test_peak_nodes_are_those_of_the_largest_jobs_that_run_beside_each_other(make_config):
    def peak(at_once: int) -> int:
        sweep = {"node_counts": [1, 2, 4], "repeats": 2, "max_parallel_jobs": at_once}
        return facts_of(make_config(sweep=sweep)).peak_nodes

    assert [peak(at_once) for at_once in (1, 2, 3, 20)] == [4, 8, 10, 14]


def test_a_layer_holds_what_the_code_asks_for_unless_it_is_installed_at_every_start():
    def has_layer(at_start: str | None) -> bool:
        requirements = Requirements(Path("requirements.txt"), {"requirements.txt": b"x"}, at_start)
        return Files(requirements=requirements).has_layer

    assert (has_layer(None), has_layer("a path in it"), Files().has_layer) == (True, False, False)


@pytest.mark.parametrize(("repeats", "at_once", "kept"), [(1, 1, 7), (1, 2, 7), (3, 2, 14)])
def test_warm_pools_serve_one_job_at_a_time_of_their_own_node_count(
    make_config, repeats, at_once, kept
):
    sweep = {"node_counts": [1, 2, 4], "repeats": repeats, "max_parallel_jobs": at_once}
    assert facts_of(make_config(sweep=sweep)).kept_nodes == kept
