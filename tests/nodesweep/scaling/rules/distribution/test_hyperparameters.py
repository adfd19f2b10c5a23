"""The hyperparameters of a job that its distribution requires.

tests/nodesweep/scaling/planning/test_request.py compares those of whole jobs with the SDK's.
"""

from __future__ import annotations

from nodesweep.scaling.rules.distribution import distribution_hyperparameters
from tests.nodesweep.scaling.rules.distribution.test_options import instance_of, typed


def test_processes_per_node_are_told_to_the_launcher_only_if_given():
    p4d, key = instance_of("ml.p4d.24xlarge"), "sagemaker_mpi_num_of_processes_per_host"
    for kind in ("torch_distributed", "trainium", "mpi", "horovod"):
        given = distribution_hyperparameters(typed({"kind": kind, "processes_per_node": 4}), p4d)
        assert given[key] == 4
        assert set(given) - set(distribution_hyperparameters(typed({"kind": kind}), p4d)) == {key}


def test_no_distribution_sends_nothing():
    assert distribution_hyperparameters(typed({"kind": "none"}), instance_of("ml.m5.xlarge")) == {}
