"""docs/preflight.md is generated from the two tables of rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodesweep.launch.sagemaker.preflight.document import preflight_document
from nodesweep.launch.sagemaker.preflight.online import ACCOUNT_RULES
from nodesweep.scaling.rules.offline import OFFLINE_RULES
from nodesweep.scaling.rules.rule import Rule

RULES: tuple[Rule[object], ...] = (*OFFLINE_RULES, *ACCOUNT_RULES)


def test_page_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[5] / "docs" / "preflight.md"
    assert page.read_text(encoding="utf-8") == preflight_document()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_says_what_it_refuses_and_what_to_do(rule: Rule[object]) -> None:
    assert rule.judges and (rule.refuses or rule.says)
    assert bool(rule.refuses) == bool(rule.remedy)


def test_each_rule_is_in_its_table_once() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    judges = [judge for rule in OFFLINE_RULES for judge in rule.judges]
    assert len(set(judges)) == len(judges)
