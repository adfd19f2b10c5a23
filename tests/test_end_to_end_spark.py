"""A dataset in S3 that Spark really validates: the image's build, a Processing job on two nodes,
the verdict, and the sweep to its report, by `nodesweep run`."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sagemaker_emulator.engine.host.containment import Containment
from tests.test_end_to_end import (
    REPOSITORY,
    client,
    latest_report,
    nodesweep,
    platform_process,  # noqa: F401  (a fixture)
    site,  # noqa: F401  (platform_process takes it)
    write_config,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("java") is None,
        reason="Spark needs Java (Debian: apt-get install openjdk-17-jre-headless)",
    ),
]
DIGITS = REPOSITORY / "configs" / "data" / "digits"
BUCKET = "raw-digits"
NO_TENS = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "label", "min_value": 1, "max_value": 9},
    "severity": "warning",
}
"""An expectation that fails, so that the job has something to report: some labels are 0."""


def test_nodesweep_run_of_a_dataset_that_spark_validates(
    platform_process: SimpleNamespace,  # noqa: F811
) -> None:
    site = platform_process  # noqa: F811
    if problem := Containment.find(site.state).opt_ml_problem:
        pytest.skip(f"no /opt/ml of a node's own on this machine: {problem}")
    s3 = client(site, "s3")
    s3.create_bucket(Bucket=BUCKET)
    for path in sorted(DIGITS.glob("*.parquet")):
        s3.upload_file(str(path), BUCKET, f"digits/{path.name}")
    done = nodesweep(site, "run", str(on_spark(site)), timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout
    report = latest_report(site)
    recorded = report["provenance"]["dataset_validation"]
    assert recorded["engine"] == "spark" and recorded["usd"] is None
    sagemaker = client(site, "sagemaker")
    [listed] = sagemaker.list_processing_jobs()["ProcessingJobSummaries"]
    assert listed["ProcessingJobName"] == recorded["job"]
    assert listed["ProcessingJobStatus"] == "Completed"
    assert recorded["billed_seconds"] > 0
    assert [point["status"] for point in report["points"]] == ["Completed"]
    docs = (site.folder / "reports" / report["sweep_id"] / "data-docs.html").read_text()
    assert "label" in docs and "warning" in docs
    assert "1797 rows" in done.stdout + done.stderr


def on_spark(site: SimpleNamespace) -> Any:  # noqa: F811
    raw = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["dataset"]
    validation = {
        "engine": "spark",
        "instance_type": "ml.local.large",
        "instance_count": 2,
        "max_runtime_seconds": 600,
        "image": {"build_args": {"REQUIREMENTS": "requirements-emulated.txt"}},
    }
    dataset = {"expectations": [*raw["expectations"], NO_TENS], "validation": validation}
    path = write_config(site, "onspark", sweep={"node_counts": [1]}, dataset=dataset)
    changed = yaml.safe_load(path.read_text())
    changed["dataset"]["source"] = f"s3://{BUCKET}/digits/"
    path.write_text(yaml.safe_dump(changed))
    return path
