"""The assumptions that are shown next to a node count that was not measured."""

from __future__ import annotations

import pytest

from nodesweep.scaling.fits.assumption import assumption


@pytest.mark.parametrize(
    "instance_type",
    [
        "ml.p3.16xlarge",
        "ml.p4d.24xlarge",
        "ml.m5.xlarge",
        "ml.unheard.of",
        None,
    ],
)
def test_instances_are_named_with_their_network(instance_type, snapshot):
    text = assumption("aws", instance_type, 8, 16)
    assert text == snapshot
    assert "same rack" in text
    assert assumption("measured", instance_type, 8, 16) == text


def test_what_the_catalogue_does_not_know_is_said(snapshot):
    from nodesweep.configs.catalogue import load_catalogue

    unknown = next(
        row.instance_type
        for row in load_catalogue().instances
        if row.efa is None and row.network_gbit_per_second is None and not row.emulated
    )
    assert assumption("aws", unknown, 8, 16) == snapshot


def test_nodes_without_a_network_say_nothing_of_one(snapshot):
    assert assumption("emulated", "ml.local.small", 8, 16) == snapshot
    assert assumption("simulated", None, 8, 16) == snapshot
