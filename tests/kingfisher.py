"""What Kingfisher, MongoDB's secret scanner, finds in a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SCAN_SECONDS = 300
# Offline: nothing found is tried out. Comments that tell a scanner to look away are not heeded.
_OPTIONS = (
    "--no-validate", "--no-update-check", "--git-history", "none", "--no-ignore", "--no-dedup",
)  # fmt: skip


class Finding(NamedTuple):
    """`path` is below the scanned folder; the text that was found is left out, so that no test's
    output shows it.
    """

    path: str
    rule: str


def findings(folder: Path, confidence: str = "low") -> set[Finding]:
    """All that looks like a secret in the folder's files, those of archives included.

    `confidence` is the least: low, medium or high. Weights and the like are noise, for which low is
    too little.
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
    """Findings that have no reason."""
    return {one for one in found if one not in reasons}
