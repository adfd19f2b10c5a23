"""The program of a Spark job that validates a dataset in S3.

    smspark-submit /opt/nodesweep/validate_dataset.py [--judge REQUEST VERDICT]…

It reads the input `request` and writes the output `verdict`, or does so for each given pair of
files. Faulty or unreadable data is part of the verdict, with exit code 0; any other failure fails
the job.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from nodesweep_judge.judge import answer  # noqa: E402
from nodesweep_judge.memory import shared_with_python  # noqa: E402
from nodesweep_judge.request import JudgeError, read_request  # noqa: E402

REQUEST = Path("/opt/ml/processing/input/request/request.json")
VERDICT = Path("/opt/ml/processing/output/verdict/verdict.json")


def main() -> None:
    """Validate the dataset of every request and write its verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--judge", nargs=2, action="append", type=Path, metavar=("REQUEST", "VERDICT")
    )
    options = parser.parse_args()
    # Spark interprets a Python time without a zone in this machine's time zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    spark = start_session()
    for request_file, verdict_file in options.judge or [(REQUEST, VERDICT)]:
        try:
            request = read_request(json.loads(request_file.read_text()))
        except JudgeError as error:
            sys.exit(f"nodesweep: {error}")
        write(verdict_file, json.dumps(answer(spark, request)))
    spark.stop()


def start_session() -> SparkSession:
    """Return a session whose executors can import nodesweep_judge."""
    builder = SparkSession.builder.appName("validate-dataset")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    SparkContext._ensure_initialized()  # until then a SparkConf lacks spark-submit's settings
    for name, size in shared_with_python(SparkConf().get).items():
        print(f"nodesweep: {name}: {size}", flush=True)
        builder = builder.config(name, size)
    session = builder.getOrCreate()
    folder = Path(tempfile.mkdtemp(prefix="nodesweep-judge-"))
    archive = shutil.make_archive(str(folder / "judge"), "zip", HERE, "nodesweep_judge")
    session.sparkContext.addPyFile(archive)
    return session


def write(path: Path, text: str) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    partial.replace(path)


if __name__ == "__main__":
    main()
