"""Secrets that Kingfisher, MongoDB's scanner, finds in a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SCAN_SECONDS = 300
# Offline: findings are not validated against services. Suppression comments are not honored.
_OPTIONS = (
    "--no-validate", "--no-update-check", "--git-history", "none", "--no-ignore", "--no-dedup",
)  # fmt: skip


class Finding(NamedTuple):
    """A finding without its text, so that no test's output shows a secret; `path` is relative."""

    path: str
    rule: str


def findings(folder: Path, confidence: str = "low") -> set[Finding]:
    """Return everything that looks like a secret in the folder's files and in its archives.

    Args:
        folder: The folder to scan.
        confidence: The lowest to include: low, medium, or high. Binary weights give false positives
            at low.
    """
    program = Path(sys.executable).with_name("kingfisher")  # package kingfisher-bin
    command = [
        str(program),
        "scan",
        str(folder),
        *_OPTIONS,
        "--confidence",
        confidence,
        "--format",
        "json",
        "--quiet",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SCAN_SECONDS, check=False
    )
    answer = json.loads(done.stdout)
    assert answer["audit"]["summary"]["scan_succeeded"] == 1, done.stderr
    return {
        Finding(one["finding"]["path"].removeprefix(f"{folder}/"), one["rule"]["id"])
        for one in answer["findings"]
    }


def not_allowed(found: set[Finding], reasons: Mapping[Finding, str]) -> set[Finding]:
    """Return the findings without a reason."""
    return {one for one in found if one not in reasons}
