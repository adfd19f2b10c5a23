"""Real probes over two instance types: jobs that end early on emulated nodes of two sizes, one
report, and a full run that validates the answer."""

from __future__ import annotations

import csv
import re
from types import SimpleNamespace

import pytest
import yaml

from tests.test_end_to_end import (  # noqa: F401
    REPOSITORY,
    latest_report,
    nodesweep,
    platform_process,
    site,
    write_config,
)

pytestmark = pytest.mark.slow
# both find their share of two cores while other tests run: a contended arm gets no recommendation
SLOW, FAST = "ml.local.small", "ml.local.medium"


def test_probes_of_two_types_are_projected_and_the_answer_is_checked(
    platform_process: SimpleNamespace,  # noqa: F811
) -> None:
    """A fifth and half of a processor train; a full run at the faster one checks it."""
    own = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["training"]
    amount = {"epochs": 8, "passes-per-epoch": 40}
    config = write_config(
        platform_process,
        "types",
        training={
            "instance_type": SLOW,
            "batch": {"policy": "fixed_global", "size": 4096},
            "hyperparameters": {**own["hyperparameters"], **amount},
        },
        sweep={
            "instance_types": [SLOW, FAST],
            "node_counts": [1],
            "design": "probe",
            "repeats": 1,
            "probe": {"precision": 0.2, "max_steps": 60},
        },
    )
    done = nodesweep(platform_process, "run", str(config))
    assert done.returncode == 0, done.stderr
    report = latest_report(platform_process)
    slow, fast = report["instances"]["arms"]
    assert [arm["instance_type"] for arm in (slow, fast)] == [SLOW, FAST]
    assert (slow["n_projected"], fast["n_projected"]) == (1, 1)
    assert slow["train_seconds"] > 1.3 * fast["train_seconds"] > 0
    assert f"1 x {FAST} (" in report["headline"]
    assert "projected" in report["headline"]
    table = platform_process.folder / "reports" / "latest" / "points.csv"
    with table.open(newline="") as stream:
        points = [(row["instance_type"], row["kind"]) for row in csv.DictReader(stream)]
    assert sorted(points) == sorted([(SLOW, "probe"), (FAST, "probe"), (FAST, "check")])
    assert report["check"]["projected_seconds"] == fast["train_seconds"]
    assert 0.5 < report["check"]["measured_seconds"] / fast["train_seconds"] < 2.0
    made = re.findall(r"of training, from (\d+) of (\d+) steps", done.stderr)
    assert len(made) == 2 and all(int(part) <= 60 < int(all_) for part, all_ in made)
