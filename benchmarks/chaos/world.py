"""The environment of a chaos run: Prefect server and worker, simulated platform, benchmark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from botocore.config import Config

from benchmarks.chaos.plan import ChaosPlan
from benchmarks.ports import free_port
from nodesweep.aws.local_keys import local_session
from nodesweep.cli.processes import Progress
from nodesweep.configs.load import load_config
from nodesweep.scaling import names
from nodesweep.tasks.dataset.remote.objects import describe_remote
from nodesweep.tasks.dataset.spark.contract import request_document
from nodesweep.tasks.report.pricing import PROCESSING, cache_price
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running

REPOSITORY = Path(__file__).resolve().parents[2]
INSTANCE_TYPE, QUOTA = "ml.m5.xlarge", 5
QUOTA_WITH_POOLS = 100  # includes further attempts and their pools
NODE_COUNTS, REPEATS, PARALLEL_JOBS = (1, 2, 4), 2, 2
SPARK_NODES, PROCESSING_USD_PER_HOUR = 2, 0.23
RAW = "raw"
"""Bucket with the data of a Spark run."""
TIME_SCALE = 0.002
# No noise: it is drawn by the job's name, which contains the sweep's time, so it would differ
# from sweep to sweep.
_MODEL = {"noise_sigma": 0.0, "t_compute_seconds": 600.0}
_SAMPLE_SECONDS = 0.2  # the shortest job takes several times as long


def write_benchmark(folder: Path) -> None:
    """Write a dataset of three small files, an image context and training code below `folder`."""
    for name in ("data", "image", "code"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        pd.DataFrame({"label": [0, 1, 2 + number]}).to_parquet(
            folder / "data" / f"part-{number}.parquet"
        )
    (folder / "image" / "Dockerfile").write_text("FROM scratch\n")
    (folder / "code" / "train.py").write_text("print('simulated')\n")


def write_config(
    folder: Path,
    endpoint: str,
    file_name: str = "config.yaml",
    parallel_jobs: int = PARALLEL_JOBS,
    keep_alive_seconds: int | None = None,
    on_spark: bool = False,
) -> Path:
    """Write a config with 6 points and return its path.

    With 2 jobs at once, the quota holds only some pairs of them.
    """
    path, config = folder / file_name, _config(folder, endpoint)
    if on_spark:
        validation = {
            "engine": "spark",
            "instance_type": INSTANCE_TYPE,
            "instance_count": SPARK_NODES,
            "image": {"uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/spark:1"},
        }
        config["dataset"] |= {"source": f"s3://{RAW}/tables", "validation": validation}
    config["sweep"]["max_parallel_jobs"] = parallel_jobs
    if keep_alive_seconds is not None:
        config["training"]["keep_alive_seconds"] = keep_alive_seconds
    path.write_text(yaml.safe_dump(config))
    return path


def _config(folder: Path, endpoint: str) -> dict[str, Any]:
    return {
        "name": "chaos",
        "dataset": {
            "name": "tiny",
            "source": str(folder / "data"),
            "format": "parquet",
            "expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "label"}}],
        },
        "image": {"context": str(folder / "image")},
        "training": {
            "instance_type": INSTANCE_TYPE,
            "max_runtime_seconds": 3600,
            "source_dir": str(folder / "code"),
            "entry_point": "train.py",
            "distribution": {"kind": "none"},
            "batch": {"policy": "fixed_global", "size": 1024},
            "learning_rate": {"value": 0.1, "rule": "linear"},
            "hyperparameters": {
                "global-batch-size": "{global_batch_size}",
                "per-replica-batch-size": "{per_replica_batch_size}",
                "lr": "{learning_rate}",
            },
        },
        "sweep": {
            "node_counts": list(NODE_COUNTS),
            "repeats": REPEATS,
            "max_parallel_jobs": PARALLEL_JOBS,
            "smoke": "never",
            "poll_interval_seconds": 0.2,
        },
        "report": {"directory": str(folder / "reports")},
        "platform": {
            "region": "us-east-1",
            "bucket": "chaos",
            "role_arn": "arn:aws:iam::000000000001:role/training",
            "endpoint_url": endpoint,
            "credentials": "platform",
            "state_directory": str(folder / "platform" / "state"),
            "create_missing": True,
        },
    }


def keep_processing_price(cache_home: Path, endpoint: str) -> None:
    """Cache the Price List's price, which no local platform has, as an earlier run would."""
    key = f"{endpoint} us-east-1 {INSTANCE_TYPE} {PROCESSING.name}"
    today = datetime.now(UTC).date()
    cache_price(cache_home / "nodesweep" / "prices.json", key, PROCESSING_USD_PER_HOUR, today)


class Platform:
    """A running platform: its endpoint, and clients that bypass the proxy."""

    def __init__(self, endpoint: str, state_directory: Path) -> None:
        self.endpoint, self.state_directory = endpoint, state_directory
        self.sagemaker, self.s3 = (
            _client(service, endpoint, state_directory) for service in ("sagemaker", "s3")
        )

    def jobs(self, **query: Any) -> list[dict[str, Any]]:
        """Return summaries of the listed training jobs."""
        pages = self.sagemaker.get_paginator("list_training_jobs").paginate(**query)
        return [job for page in pages for job in page["TrainingJobSummaries"]]

    def describe(self, name: str) -> dict[str, Any]:
        """Return a training job's description."""
        return dict(self.sagemaker.describe_training_job(TrainingJobName=name))

    def processing_jobs(self, **query: Any) -> list[dict[str, Any]]:
        """Return summaries of the listed Processing jobs."""
        pages = self.sagemaker.get_paginator("list_processing_jobs").paginate(**query)
        return [job for page in pages for job in page["ProcessingJobSummaries"]]

    def sweep(self) -> str | None:
        """Return the sweep whose record is in the bucket; None before it is written."""
        found = self._sweeps_with("/config.json")
        return found[0] if found else None

    def sweep_to_continue(self) -> str | None:
        """Return the sweep that a user would resume, whose name was on the screen.

        That is the recorded one, or else the last one whose dataset is being validated and that
        nobody has stopped.
        """
        if recorded := self.sweep():
            return recorded
        stopped = self.stopped_sweeps()
        begun = [
            sweep for sweep in self._sweeps_with("/request/request.json") if sweep not in stopped
        ]
        return begun[-1] if begun else None

    def stopped_sweeps(self) -> set[str]:
        """Return the sweeps marked by `nodesweep stop`."""
        return set(self._sweeps_with("/stopped.json"))

    def _sweeps_with(self, ending: str) -> list[str]:
        keys = self.keys("nodesweep/sweeps/")
        return sorted({key.split("/")[2] for key in keys if key.endswith(ending)})

    def keys(self, prefix: str) -> list[str]:
        """Return the object keys below a prefix."""
        try:
            pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket="chaos", Prefix=prefix)
            return [item["Key"] for page in pages for item in page.get("Contents", ())]
        except self.s3.exceptions.NoSuchBucket:
            return []

    def read_json(self, key: str) -> Any:
        """Return a parsed JSON object."""
        return json.loads(self.s3.get_object(Bucket="chaos", Key=key)["Body"].read())


@contextmanager
def served_platform(
    folder: Path,
    plan: ChaosPlan,
    quota: int = QUOTA,
    simulation: Mapping[str, float] = _MODEL,
    time_scale: float = TIME_SCALE,
) -> Iterator[Platform]:
    """Serve the platform of one run in this process, with the plan's faults."""
    folder.mkdir(parents=True)
    faults, model = folder / "faults.json", folder / "model.json"
    faults.write_text(json.dumps({"faults": [dict(rule) for rule in plan.api_faults]}))
    model.write_text(json.dumps(dict(simulation)))
    quotas = {INSTANCE_TYPE: quota}
    leaves = folder / "leaves"
    leaves.mkdir()
    config = ServerConfig(
        0,
        folder / "state",
        quotas=quotas,
        faults_file=faults,
        engine="simulated",
        model_file=model,
        time_scale=time_scale,
        processing_leaves=leaves,
    )
    # moto prints a line for each service that it lacks.
    with (
        (folder / "printed.log").open("w") as printed,
        redirect_stdout(printed),
        running(config) as endpoint,
    ):
        served = Platform(endpoint, config.state_dir)
        if plan.on_spark:
            _give_verdict(served, folder.parent, leaves)
        yield served


def _give_verdict(platform: Platform, folder: Path, leaves: Path) -> None:
    """Upload the dataset and its Processing job's verdict, since a simulation runs no Spark."""
    platform.s3.create_bucket(Bucket=RAW)
    files = sorted((folder / "data").iterdir())
    for file in files:
        platform.s3.upload_file(str(file), RAW, f"tables/{file.name}")
    config = load_config(write_config(folder, platform.endpoint, "spark.yaml", on_spark=True))
    section = config.dataset
    assert section is not None
    request = request_document(section, describe_remote(platform.s3, section))
    found: dict[str, Any] = {
        "unreadable": None,
        "rows": 3,
        "schema": 0,
        "unjudged": [],
        "failed": {},
    }
    verdict = {
        "format": request["format"],
        "request": request["digest"],
        "schemas": [{"columns": ["label"], "arrow": None}],
        "files": [found] * len(files),
        "repeats": None,
    }
    place = leaves / "processing" / "output" / "verdict"
    place.mkdir(parents=True)
    (place / "verdict.json").write_text(json.dumps(verdict))


def _client(service: str, endpoint: str, state_directory: Path) -> Any:
    # Many retries, since the plan's throttling may hit these calls too.
    retries = Config(retries={"total_max_attempts": 5}, proxies={})
    return local_session(endpoint, "us-east-1", state_directory).client(
        service, endpoint_url=endpoint, config=retries
    )


class Sampler:
    """Samples jobs in progress, since each simulated job has its own clock."""

    def __init__(self, platform: Platform) -> None:
        self.peak_nodes = self.peak_jobs = 0
        self._platform, self._over = platform, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            running_jobs = self._platform.jobs(StatusEquals="InProgress")
            places = [names.parse_job_name(job["TrainingJobName"]) for job in running_jobs]
            self.peak_nodes = max(
                self.peak_nodes, sum(place.nodes for place in places if place is not None)
            )
            self.peak_jobs = max(self.peak_jobs, len(running_jobs))


@contextmanager
def prefect_server(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a Prefect server for all runs and yield the environment for its clients."""
    port = free_port()
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "AWS_"))
        },
        "PREFECT_HOME": str(folder / "prefect"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_WELCOME_MESSAGE": "false",
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--no-ui"]
    with (folder / "prefect-server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for_server(server, f"http://127.0.0.1:{port}/api/health")
        yield {**environment, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for_server(server: subprocess.Popen[bytes], url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    progress = Progress(server.pid)
    while progress.problem() is None and server.poll() is None:
        try:
            with opener.open(url, timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise RuntimeError(f"the Prefect server did not respond at {url}")


def forget(folder: Path) -> None:
    """Delete the files of a run that passed."""
    shutil.rmtree(folder, ignore_errors=True)
