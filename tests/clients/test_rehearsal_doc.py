"""The blocks of docs/rehearse.md and docs/tutorial-local.md run unchanged, on one platform.

The tutorial's own `nodesweep run local` is left out, because tests/test_end_to_end.py runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.ports import free_port
from sagemaker_emulator.faults.plan import check_rules
from tests.processes.prefect_home import with_tables

DOCS = Path(__file__).parents[2] / "docs"
REHEARSAL, TUTORIAL = ((DOCS / name).read_text() for name in ("rehearse.md", "tutorial-local.md"))
SECONDS = 400.0  # for a machine that has much else to do


def blocks(guide: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("rule", re.findall(r"`(\{fault: .*?\})`", REHEARSAL))
def test_every_rule_of_the_table_is_a_fault(rule: str) -> None:
    assert check_rules([yaml.safe_load(rule)], "docs/rehearse.md")


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path) -> None:
    port = free_port()
    *rehearsal, end = blocks(REHEARSAL)
    tutorial = [block for block in blocks(TUTORIAL) if block != "nodesweep run local\n"]
    assert len(blocks(TUTORIAL)) == len(tutorial) + 1
    script = "\n".join(["set -e", *rehearsal, *tutorial, end]).replace("4571", str(port))
    own = Path(sys.executable).parent
    environment = {
        "PATH": f"{own}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PREFECT_HOME": str(with_tables(tmp_path / "prefect")),
    }
    start = "nodesweep local start"
    done = subprocess.run(
        ["bash", "-c", script.replace(start, f"{start} --owner-pid {os.getpid()}")],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert "simulated" in done.stdout
    attempts = [line for line in done.stdout.splitlines() if re.match(r".*\b4,1,[12],", line)]
    assert len(attempts) == 2, done.stdout
