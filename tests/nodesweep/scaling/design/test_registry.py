"""The designs are the same in the config and in the code."""

from __future__ import annotations

from typing import get_args

from nodesweep.configs.designs import RULES, DesignName
from nodesweep.scaling.design.registry import DESIGNS


def test_each_design_has_its_rules_and_its_code():
    assert list(get_args(DesignName)) == list(RULES) == list(DESIGNS)
    assert all(design.rules is RULES[name] for name, design in DESIGNS.items())
