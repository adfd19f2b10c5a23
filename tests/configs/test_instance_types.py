"""sweep.instance_types in a config: refused values, and unchanged digests of configs without it."""

from __future__ import annotations

import pytest

from nodesweep.configs.load import ConfigError
from nodesweep.configs.sweep import SweepConfig
from nodesweep.scaling.names import config_digest

SMALL, MEDIUM = "ml.local.small", "ml.local.medium"


@pytest.mark.parametrize(
    "sweep",
    [
        {"instance_types": [SMALL]},
        {"instance_types": [SMALL, SMALL]},
        {"instance_types": [SMALL, "ml.nothing.large"]},
        {"instance_types": [MEDIUM, "ml.local.large"]},
        {"instance_types": [SMALL, MEDIUM], "design": "sequential", "repeats": 3},
        {"instance_types": [SMALL, MEDIUM], "repeats": 50, "node_counts": list(range(1, 30))},
    ],
)  # fmt: skip
def test_what_is_refused(make_config, sweep, snapshot):
    with pytest.raises(ConfigError) as refused:
        make_config(sweep=sweep, training={"instance_type": SMALL})
    assert str(refused.value) == snapshot


def test_a_config_of_one_type_keeps_its_digest(make_config):
    config = make_config()
    assert "instance_types" not in config.model_dump(mode="json")["sweep"]
    assert config_digest(config) == config_digest(make_config(sweep={"instance_types": None}))


def test_another_type_is_another_sweep(make_config):
    one = make_config(training={"instance_type": SMALL})
    two = make_config(sweep={"instance_types": [SMALL, MEDIUM]}, training={"instance_type": SMALL})
    assert config_digest(one) != config_digest(two)
    assert config_digest(two.of_arm(SMALL)) == config_digest(one)
    assert one.of_arm(MEDIUM) is one
    assert two.of_arm(MEDIUM).training.instance_type == MEDIUM
    assert (one.instance_types, two.instance_types) == ((SMALL,), (SMALL, MEDIUM))


def test_jobs_are_counted_over_the_types():
    sweep = SweepConfig(node_counts=(1, 2), repeats=3, instance_types=("a", "b"))
    assert sweep.most_jobs == 12
    probing = SweepConfig(node_counts=(1, 2), repeats=3, instance_types=("a", "b"), design="probe")
    assert probing.most_jobs == 13
