"""The recipe of examples/ that uses mpirun: ranks on two containers, connected by ssh."""

from __future__ import annotations

import pytest

from tests.examples.recipe_runs import check_recipe

pytestmark = [pytest.mark.slow, pytest.mark.containers]


def test_mpi4py_runs_and_its_time_is_that_of_its_own_stopwatch(platform, tmp_path):
    # imports Prefect's server, which takes seconds wherever tests are collected
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        changes = (
            f"platform.endpoint_url={platform.endpoint}",
            f"platform.state_directory={platform.state_dir}",
        )
        check_recipe("mpi4py", tmp_path, *changes, node_counts=(2,))
