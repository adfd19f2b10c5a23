"""Measure the validation of a dataset in S3 on this machine and on 1, 2 and 4 Spark nodes.

    .venv/bin/python -m benchmarks.s3.validation_spark [--rows 1000000 5000000 20000000]
        [--nodes 1 2 4] [--instance-type ml.local.medium] [--faults] [--output FILE.json]

Needs Java 17. It starts a local platform with the process engine; its S3 holds generated Parquet of
20 columns, about 500,000 rows a file. 36 expectations are checked by `pandas`, as a run does on
this machine with all of its CPUs, and by one Processing job per number of nodes, which judges the
datasets in turn, smallest first. A node is a share of this machine's CPUs: ml.local.medium is half
of one, so four nodes are two. `--faults` plants four faults in one file of each dataset, and checks
for a unique key.

`start_seconds` is a job's time that is not spent on judging: JVMs, Python, the request and the
verdict. Ratios are of seconds of judging: `to_pandas` relative to pandas, `to_one_node` relative to
the first number of nodes. Exit code 1 if a report differs from that of pandas in any field.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.s3.upload import served
from benchmarks.validation import checks, write_data
from nodesweep.aws.platform import aws_client
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling.names import canonical_digest, pretty_json
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, describe_remote
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.dataset.validation_report import ValidationReport
from sagemaker_emulator.engine.process.image_store import ProcessImageStore

REPOSITORY = Path(__file__).resolve().parents[2]
BUCKET = "rows"
CONTEXT = REPOSITORY / "infra" / "image_spark"
REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"
ROLE_ARN = "arn:aws:iam::000000000000:role/nodesweep-training"
PLACE = "/opt/ml/processing"
ROWS_PER_FILE = 500_000
FEWEST_FILES = 8
NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of every report, so that reports can be compared."""
_JOB_SECONDS = 1800


@dataclass(frozen=True)
class Bench:
    """A running platform with the Spark image in its store."""

    endpoint: str
    state_dir: Path
    image_uri: str = ""

    def client(self, service: str) -> Any:
        """Return a boto3 client for the platform."""
        config = PlatformConfig(
            region="us-east-1",
            bucket=BUCKET,
            role_arn=ROLE_ARN,
            endpoint_url=self.endpoint,
            credentials="platform",
            state_directory=str(self.state_dir),
        )
        return aws_client(service, config)


def build_image(store: Path) -> str:
    """Build the Spark image into a persistent store; its tag derives from its sources."""
    files = sorted(path for path in CONTEXT.rglob("*") if path.suffix in ("", ".py", ".txt"))
    content = [path.read_bytes().hex() for path in files if path.is_file()]
    tag = canonical_digest(content)[:16]
    arguments = {"REQUIREMENTS": "requirements-emulated.txt"}
    images = ProcessImageStore(store)
    images.build(CONTEXT, "spark", tag, arguments, lambda line: None, threading.Event(), 900)
    return f"{REGISTRY}/spark:{tag}"


def section(rows: int, faults: bool) -> DatasetConfig:
    """Return the dataset's config for this many rows."""
    return DatasetConfig(
        name="bench",
        source=f"s3://{BUCKET}/data/{rows}",
        format="parquet",
        expectations=checks(),
        unique_columns=("id",) if faults else (),
    )


def plant_faults(file: Path) -> None:
    """Plant values out of bounds and out of a set, a null, and a duplicate key."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    planted: dict[str, tuple[int, Any]] = {
        "narrow_0": (7, 4711),
        "split": (11, "oops"),
        "double_1": (13, None),
        "id": (17, table.column("id")[0].as_py()),
    }
    for name, (row, value) in planted.items():
        values = table.column(name).to_pylist()
        values[row] = value
        kind = table.schema.field(name).type
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))
    pq.write_table(table, file)


def put_data(bench: Bench, rows: int, faults: bool, scratch: Path) -> dict[str, int]:
    """Upload generated files to S3; return their number and size in bytes."""
    folder = scratch / "data"
    folder.mkdir()
    write_data(folder, rows, max(FEWEST_FILES, rows // ROWS_PER_FILE))
    files = sorted(folder.iterdir())
    if faults:
        plant_faults(files[-1])
    size = sum(file.stat().st_size for file in files)
    for file in files:
        bench.client("s3").upload_file(str(file), BUCKET, f"data/{rows}/{file.name}")
    shutil.rmtree(folder)
    return {"files": len(files), "bytes": size}


def judge_here(bench: Bench, rows: int, faults: bool) -> dict[str, Any]:
    """Validate in this process as a run without Spark does, excluding imports."""
    import great_expectations  # noqa: F401  (seconds of import, which this leaves out)

    from nodesweep.tasks.dataset.judging import proof  # noqa: F401
    from nodesweep.tasks.dataset.validation import validate_tables

    s3, config = bench.client("s3"), section(rows, faults)
    dataset = describe_remote(s3, config)
    wall, cpu = time.perf_counter(), time.process_time()
    report = validate_tables(remote_tables(s3, dataset, config), config, now=NOW)
    return {
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "report": report.model_dump_json(),
    }


def in_a_process(bench: Bench, rows: int, faults: bool) -> dict[str, Any]:
    """Run judge_here() in a new process."""
    module = "benchmarks.s3.validation_spark"
    command = [sys.executable, "-m", module, "--measure", bench.endpoint, str(bench.state_dir)]
    command += [str(rows), *(["--faults"] if faults else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def judge_on_nodes(
    bench: Bench, nodes: int, instance_type: str, asked: dict[int, dict[str, Any]]
) -> tuple[float, dict[int, dict[str, Any]]]:
    """Return one job's seconds from start to end, and its verdict per number of rows."""
    s3, sagemaker, name = bench.client("s3"), bench.client("sagemaker"), f"judge-{nodes}"
    arguments: list[str] = []
    for rows, document in asked.items():
        key = f"{name}/requests/{rows}.json"
        s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(document).encode())
        arguments += ["--judge", f"{PLACE}/input/request/{rows}.json"]
        arguments += [f"{PLACE}/output/verdict/{rows}.json"]
    mode = {"S3DataType": "S3Prefix", "S3InputMode": "File"}
    request = {"S3Uri": f"s3://{BUCKET}/{name}/requests", "LocalPath": f"{PLACE}/input/request"}
    verdict = {"S3Uri": f"s3://{BUCKET}/{name}/verdicts", "LocalPath": f"{PLACE}/output/verdict"}
    sagemaker.create_processing_job(
        ProcessingJobName=name,
        RoleArn=ROLE_ARN,
        AppSpecification={
            "ImageUri": bench.image_uri,
            "ContainerEntrypoint": ["smspark-submit", "/opt/nodesweep/validate_dataset.py"],
            "ContainerArguments": arguments,
        },
        ProcessingResources={
            "ClusterConfig": {
                "InstanceType": instance_type,
                "InstanceCount": nodes,
                "VolumeSizeInGB": 1,
            }
        },
        ProcessingInputs=[{"InputName": "request", "S3Input": request | mode}],
        ProcessingOutputConfig={
            "Outputs": [
                {"OutputName": "verdict", "S3Output": verdict | {"S3UploadMode": "EndOfJob"}}
            ]
        },
        StoppingCondition={"MaxRuntimeInSeconds": _JOB_SECONDS},
    )
    job = wait_for_end(sagemaker, name)
    verdicts = {
        rows: json.loads(
            s3.get_object(Bucket=BUCKET, Key=f"{name}/verdicts/{rows}.json")["Body"].read()
        )
        for rows in asked
    }
    seconds = (job["ProcessingEndTime"] - job["ProcessingStartTime"]).total_seconds()
    return seconds, verdicts


def wait_for_end(sagemaker: Any, name: str) -> dict[str, Any]:
    """Return the description of a completed job.

    Raises:
        SystemExit: The job ended otherwise.
    """
    deadline, pause_seconds = time.monotonic() + 2 * _JOB_SECONDS, 0.5
    while time.monotonic() < deadline:
        job: dict[str, Any] = sagemaker.describe_processing_job(ProcessingJobName=name)
        if job["ProcessingJobStatus"] not in ("InProgress", "Stopping"):
            if job["ProcessingJobStatus"] == "Completed":
                return job
            raise SystemExit(f"{name} is {job['ProcessingJobStatus']}: {job.get('FailureReason')}")
        time.sleep(pause_seconds * random.uniform(0.5, 1.0))
        pause_seconds = min(5.0, 1.5 * pause_seconds)
    raise SystemExit(f"{name} is still running")


def compare(bench: Bench, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Measure every number of rows on this machine and on every number of nodes."""
    bench.client("s3").create_bucket(Bucket=BUCKET)
    asked: dict[int, tuple[DatasetConfig, RemoteDataset]] = {}
    cases: dict[int, dict[str, Any]] = {}
    reports: dict[int, ValidationReport] = {}
    for rows in sorted(options.rows):
        cases[rows] = {"data": put_data(bench, rows, options.faults, scratch), "spark": {}}
        config = section(rows, options.faults)
        asked[rows] = (config, describe_remote(bench.client("s3"), config))
        found = in_a_process(bench, rows, options.faults)
        reports[rows] = ValidationReport.model_validate_json(found.pop("report"))
        cases[rows]["pandas"] = found | {"problems": len(reports[rows].problems)}
        print(f"{rows} rows, pandas: {cases[rows]['pandas']}", flush=True)
    documents = {rows: request_document(*one) for rows, one in asked.items()}
    start_seconds = {}
    for nodes in options.nodes:
        job_seconds, verdicts = judge_on_nodes(bench, nodes, options.instance_type, documents)
        spent = {rows: sum(it["spark"]["seconds"].values()) for rows, it in verdicts.items()}
        start_seconds[nodes] = round(job_seconds - sum(spent.values()), 1)
        print(f"{nodes} nodes: {job_seconds:.0f} s, start {start_seconds[nodes]} s", flush=True)
        for rows, verdict in verdicts.items():
            is_same = report_of(verdict, *asked[rows], NOW) == reports[rows]
            cases[rows]["spark"][nodes] = verdict["spark"] | {
                "judging_seconds": round(spent[rows], 2),
                "same_report": is_same,
            }
            print(f"{rows} rows, {nodes} nodes: {cases[rows]['spark'][nodes]}", flush=True)
    for case in cases.values():
        case["ratio"] = ratios(case)
    return {"start_seconds": start_seconds, "cases": cases}


def ratios(case: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return Spark's slowdown relative to pandas, and its speedup over the first node count."""
    spent = {nodes: it["judging_seconds"] for nodes, it in case["spark"].items()}
    first = next(iter(spent.values()))
    here = case["pandas"]["wall_seconds"]
    return {
        "to_pandas": {nodes: round(seconds / here, 2) for nodes, seconds in spent.items()},
        "to_one_node": {nodes: round(first / seconds, 2) for nodes, seconds in spent.items()},
    }


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[1_000_000, 5_000_000, 20_000_000],
        help="rows of the datasets",
    )
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1, 2, 4], help="numbers of Spark nodes"
    )
    parser.add_argument(
        "--instance-type", default="ml.local.medium", help="instance type of the Spark nodes"
    )
    parser.add_argument("--faults", action="store_true", help="plant faults in the data")
    parser.add_argument(
        "--store",
        type=Path,
        default=REPOSITORY / ".nodesweep" / "tests",
        help="folder with the images and environments of the local platform",
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        endpoint, state_dir, rows = options.measure
        found = judge_here(Bench(endpoint, Path(state_dir)), int(rows), options.faults)
        print(json.dumps(found))
        return 0
    image_uri = build_image(options.store)
    with tempfile.TemporaryDirectory(prefix="nodesweep-spark-") as scratch:
        state_dir = Path(scratch) / "platform"
        state_dir.mkdir()
        for name in ("images", "venvs"):
            (state_dir / name).symlink_to(options.store.resolve() / name)
        with served(state_dir) as endpoint:
            found = compare(Bench(endpoint, state_dir, image_uri), options, Path(scratch))
    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "load_at_end": [round(value, 1) for value in os.getloadavg()],
        "versions": {name: version(name) for name in ("great-expectations", "pandas", "pyarrow")},
        "instance_type": options.instance_type,
        "expectations": len(checks()),
        "faults": options.faults,
        **found,
    }
    for rows, case in result["cases"].items():
        print(rows, json.dumps(case["ratio"]))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    same = [it["same_report"] for case in result["cases"].values() for it in case["spark"].values()]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
