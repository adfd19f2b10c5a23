"""What is said beside a number of nodes that nobody measured."""

from __future__ import annotations

import pytest

from nodesweep.scaling.fits.assumption import assumption


@pytest.mark.parametrize(
    ("instance_type", "network"),
    [
        ("ml.p3.16xlarge", "ml.p3.16xlarge (25 Gbit/s a node, without EFA)"),
        ("ml.p4d.24xlarge", "ml.p4d.24xlarge (400 Gbit/s a node, with EFA)"),
        ("ml.m5.xlarge", "ml.m5.xlarge (up to 10 Gbit/s a node, without EFA)"),
        ("ml.unheard.of", "ml.unheard.of (network unknown)"),
        (None, "an unknown instance type and network"),
    ],
)
def test_instances_are_named_with_their_network(instance_type, network):
    text = assumption("aws", instance_type, 8, 16)
    assert text.startswith(f"Measured were at most 8 nodes of {network}. This assumes that 16 are")
    assert "same rack" in text and "neither number nor interval holds" in text
    assert assumption("measured", instance_type, 8, 16) == text


def test_what_the_catalogue_does_not_know_is_said():
    from nodesweep.configs.catalogue import load_catalogue

    unknown = next(
        row.instance_type
        for row in load_catalogue().instances
        if row.efa is None and row.network_gbit_per_second is None and not row.emulated
    )
    assert f"{unknown} (network rate unknown, EFA unknown)" in assumption("aws", unknown, 8, 16)


def test_nodes_without_a_network_say_nothing_of_one():
    assert "room for 16 of them" in assumption("emulated", "ml.local.small", 8, 16)
    assert assumption("simulated", None, 8, 16).startswith("Simulated nodes have no network")
