"""The judge with the Spark and Python of AWS's image gives the same verdict as this machine for
every dataset of judged_data.py."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from infra.local.tests.platform_client import serve_platform
from infra.local.tests.processing.spark_platform import needs_java
from tests.clients.client_environment import client_variables, run_client
from tests.infra.image_spark.aws_image import (
    IMAGE,
    PYTHON,
    SPARK,
    aws_image_python,
    needs_its_python,
)
from tests.infra.image_spark.both_engines import ask, assert_one_verdict
from tests.infra.image_spark.judged_data import CASES

# Two executors in processes of their own, which get the judge from the driver; a compiler that does
# its best would take longer than what it compiles.
SETTINGS = """
spark.master local-cluster[2,1,1024]
spark.executor.memory 900m
spark.executor.memoryOverhead 100m
spark.ui.enabled false
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


def test_it_runs_on_what_the_dockerfile_names() -> None:
    [tag] = re.findall(r"^ARG BASE_IMAGE=.*:(\S+)$", (IMAGE / "Dockerfile").read_text(), re.M)
    assert tag.startswith(f"{SPARK.rpartition('.')[0]}-cpu-py{PYTHON.replace('.', '')}-")


@pytest.mark.slow
@needs_java
@needs_its_python
def test_spark_35_on_python_312_gives_the_verdict_of_one_machine(tmp_path: Path) -> None:
    python = aws_image_python()
    settings = tmp_path / "spark"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(SETTINGS)
    for platform in serve_platform(tmp_path / "platform"):
        asked, arguments = ask(platform.s3, CASES), []
        for prefix, one in asked.items():
            request, verdict = tmp_path / f"{prefix}.json", tmp_path / "verdicts" / prefix
            request.write_text(one.request)
            arguments += ["--judge", str(request), str(verdict)]
        variables = client_variables(
            platform.endpoint,
            platform.state_dir,
            tmp_path,
            PATH=f"{python.parent}:{os.environ['PATH']}",
            PYSPARK_PYTHON=str(python),
            PYTHONHASHSEED="0",  # as in AWS's image
            SPARK_CONF_DIR=str(settings),
            SPARK_LOCAL_DIRS=str(settings),
        )
        submit, program = python.with_name("spark-submit"), IMAGE / "validate_dataset.py"
        said = run_client(submit, program, *arguments, variables=variables, seconds=1200)
        verdicts = {prefix: (tmp_path / "verdicts" / prefix).read_text() for prefix in asked}
        assert_one_verdict(platform.s3, asked, verdicts)
    assert json.loads(verdicts["types"])["spark"]["version"] == SPARK
    assert "nodesweep: spark.executor.memory: 600m\n" in said
