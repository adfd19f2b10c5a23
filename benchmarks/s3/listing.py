"""Measure the time to list and name a dataset of 100,000 objects in S3, on a local platform.

    .venv/bin/python -m benchmarks.s3.listing [--objects 100000] [--delay-seconds 0.1]
        [--repeats 3] [--output FILE.json]

`ours` is nodesweep's listing (describe_remote: list in parallel, name by keys, sizes and ETags),
`versions` the same on a versioned bucket, `in_order` boto3's paginator, page after page. The
platform is another process; objects are put directly into its memory, since 100,000 calls would
take ten minutes. On loopback a page only costs the server's CPU; --delay-seconds delays each
response, as a network would. Exit code 1 if `ours` takes more than GOAL_SECONDS or misses an
object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.s3.upload import Bench
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.scaling.names import pretty_json

GOAL_SECONDS = 60.0
BUCKETS = {"plain": False, "versioned": True}


def serve(state_dir: Path, objects: int, delay_seconds: float) -> None:
    """Serve a platform whose buckets hold this many objects, until standard input ends."""
    from moto.s3.models import s3_backends

    from sagemaker_emulator.api.front import Front
    from sagemaker_emulator.api.protocol import ACCOUNT_ID
    from sagemaker_emulator.server.contract import ServerConfig
    from sagemaker_emulator.server.serving import running

    with running(ServerConfig(0, state_dir)) as endpoint:
        backend = s3_backends[ACCOUNT_ID]["aws"]
        for bucket, is_versioned in BUCKETS.items():
            backend.create_bucket(bucket, "us-east-1")
            if is_versioned:
                backend.put_bucket_versioning(bucket, "Enabled")
            for number in range(objects):
                backend.put_object(bucket, f"raw/part-{number:06}.parquet", b"x", etag="0" * 32)
        answer: Callable[..., Any] = Front.__call__

        def late(self: Front, environ: Any, start_response: Any) -> Any:
            if "list-type=2" in environ["QUERY_STRING"] or "versions" in environ["QUERY_STRING"]:
                time.sleep(delay_seconds)
            return answer(self, environ, start_response)

        setattr(Front, "__call__", late)  # noqa: B010
        print(endpoint, flush=True)
        sys.stdin.read()


@contextmanager
def served(state_dir: Path, objects: int, delay_seconds: float) -> Iterator[str]:
    """Run such a platform in another process and yield its endpoint."""
    arguments = [str(state_dir), str(objects), str(delay_seconds)]
    command = [sys.executable, "-m", "benchmarks.s3.listing", "--serve", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def describe(s3: Any, bucket: str) -> int:
    """List the dataset as a run does and return the number of objects."""
    from nodesweep.tasks.dataset.remote.objects import describe_remote

    config = DatasetConfig.model_validate(
        {"name": "bench", "source": f"s3://{bucket}/raw", "format": "files"}
    )
    found = describe_remote(s3, config)
    assert found.digest
    return len(found.objects)


def in_order(s3: Any) -> int:
    """List the dataset page by page and return the number of objects."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="plain", Prefix="raw/")
    return sum(len(page["Contents"]) for page in pages)


def measure(call: Callable[[], int]) -> dict[str, Any]:
    """Return wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    objects = call()
    return {
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "client_cpu_seconds": round(time.process_time() - cpu, 2),
        "objects": objects,
    }


def compare(objects: int, delay_seconds: float, repeats: int) -> dict[str, Any]:
    """Measure all ways and return the results."""
    from nodesweep.aws.platform import aws_client

    with tempfile.TemporaryDirectory(prefix="nodesweep-listing-") as scratch:
        state_dir = Path(scratch)
        with served(state_dir, objects, delay_seconds) as endpoint:
            s3 = aws_client("s3", Bench(endpoint, state_dir, "platform").platform_config("plain"))
            ways: dict[str, Callable[[], int]] = {
                "ours": lambda: describe(s3, "plain"),
                "versions": lambda: describe(s3, "versioned"),
                "in_order": lambda: in_order(s3),
            }
            runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
            for _ in range(repeats):
                for way, call in ways.items():
                    runs[way].append(measure(call))
                    print(f"{delay_seconds} s  {way:10} {runs[way][-1]}", flush=True)
    return {
        "delay_seconds": delay_seconds,
        "median_wall_seconds": {
            way: median(run["wall_seconds"] for run in some) for way, some in runs.items()
        },
        "runs": runs,
    }


def main() -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=100_000, help="objects of the dataset")
    parser.add_argument(
        "--delay-seconds", type=float, default=0.1, help="seconds by which each response is delayed"
    )
    parser.add_argument("--repeats", type=int, default=3, help="listings per way")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        state_dir, objects, delay = options.serve
        serve(Path(state_dir), int(objects), float(delay))
        return 0
    found = [
        compare(options.objects, delay, options.repeats) for delay in (0.0, options.delay_seconds)
    ]
    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "load_at_end": [round(value, 1) for value in os.getloadavg()],
        "versions": {name: version(name) for name in ("boto3", "moto")},
        "objects": options.objects,
        "measured": found,
    }
    print(json.dumps([one["median_wall_seconds"] for one in found]))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    ours = [run for one in found for way in ("ours", "versions") for run in one["runs"][way]]
    is_fast = all(run["wall_seconds"] <= GOAL_SECONDS for run in ours)
    return 0 if is_fast and all(run["objects"] == options.objects for run in ours) else 1


if __name__ == "__main__":
    sys.exit(main())
