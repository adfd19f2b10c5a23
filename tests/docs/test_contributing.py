"""The list in CONTRIBUTING.md of tasks that make several calls is complete."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SINGLE_CALLS = {
    "announce-budget",
    "announce-regression",
    "find-repository",
    "pin-container",
    "publish-trend",
    "read-report-file",
    "read-sweep-record",
    "read-verdict",
    "append-history",
}
NO_CALLS = {"validate-dataset", "write-report"}


def tasks() -> dict[str, str]:
    """Return the functions that create the tasks, by the task's name."""
    found = re.compile(r'as_task\(\s*"([a-z-]+)"[^)]*\)')
    return {
        match[1]: match[0] for match in found.finditer((ROOT / "tasks" / "calls.py").read_text())
    }


def test_every_task_of_several_calls_is_listed_with_its_reason() -> None:
    _, _, section = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("## Tasks that make several calls\n")
    )
    listed = re.findall(r"`([a-z-]+)`", section.partition("\n## ")[0])
    assert sorted(listed) == sorted(set(tasks()) - SINGLE_CALLS - NO_CALLS)


def test_every_task_that_calls_the_platform_is_retried() -> None:
    unretried = {name for name, call in tasks().items() if "TASK_OPTIONS" not in call}
    assert unretried == {"validate-dataset"}
