"""Compare the upload of a dataset with `aws s3 cp --recursive`, on servers that it starts.

    .venv/bin/python -m benchmarks.s3.upload [--repeats 5] [--aws aws] [--crt AWS_CLI_2]
        [--servers NAME ...] [--output FILE.json]

The servers are the local platform, and two that discard objects (benchmarks/s3/stand_in.py): one
responds at once, one 100 ms after an object, about as S3 does ("roughly 100 to 200 milliseconds",
Amazon S3 User Guide). The platform checks and stores objects on the same cores as the client, so
its CPU seconds are reported too; it takes most of the time, which no client can save.

Two datasets of random bytes: 10 files of 49 MB, 2,000 of 6 kB. In each repeat the ways alternate,
each into a separate bucket, with a rotating start. `ours` is nodesweep's upload, scan_directory()
and upload() with all hashing, without imports; for `aws` the time for an empty folder is
subtracted. `again` is a second upload. `crt` is the AWS CLI 2 named by --crt with its CRT client;
version 2.9 omits the port of an endpoint and cannot reach the platform.

Exit code 1 if `ours` is not GOAL_RATIO times as fast by the median of the repeats on a server that
discards objects, or a second run on the platform sends a byte or opens a file of the dataset.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

from nodesweep.aws.local_status import own_status, read_key
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling.names import pretty_json

GOAL_RATIO = 1.2
PLATFORM = "local platform"
STAND_INS = {"answers at once": 0.0, "answers after 100 ms": 0.1}
"""Servers that discard objects -> their response delay in seconds."""
CASES = {"10 x 49 MB": (10, 49_000_000), "2,000 x 6 kB": (2000, 6000)}
_KEYS = "aws-credentials"
_SETTLE_SECONDS = 3.0
"""Age from which a file's hash is cached (tasks/dataset/hashing.py)."""


@dataclass(frozen=True)
class Bench:
    """A server and the commands measured on it; its keys are in `state_dir`."""

    endpoint: str
    state_dir: Path
    credentials: Literal["chain", "platform"]
    aws: str = "aws"
    crt: str | None = None
    pid: int | None = None
    """The server's process, if it is not the platform's."""

    @property
    def keeps(self) -> bool:
        """True if the server stores objects."""
        return self.credentials == "platform"

    def platform_config(self, bucket: str) -> PlatformConfig:
        """Return a config of the server."""
        return PlatformConfig(
            region="us-east-1",
            bucket=bucket,
            role_arn="arn:aws:iam::000000000000:role/nodesweep-training",
            endpoint_url=self.endpoint,
            credentials=self.credentials,
            state_directory=str(self.state_dir),
        )

    def server_cpu_seconds(self) -> float:
        """Return the CPU seconds of the server so far."""
        pid = self.pid or own_status(self.endpoint, read_key(self.state_dir), 10)["pid"]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write_data(folder: Path, files: int, size: int) -> None:
    """Write files of random bytes."""
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"part-{number:05}.bin").write_bytes(os.urandom(size))


def upload_ours(bench: Bench, folder: Path, bucket: str) -> dict[str, Any]:
    """Upload as a run does, in this process; `opened` counts openings of the dataset's files."""
    from nodesweep.aws.platform import aws_client
    from nodesweep.tasks.dataset.files import scan_directory, upload

    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(f"{folder}/"):
            opened.append(str(arguments[0]))

    sys.addaudithook(note)
    config = DatasetConfig(name="bench", source=str(folder), format="files")
    at = bench.platform_config(bucket)
    s3 = aws_client("s3", at)
    s3.list_buckets()  # the first call loads botocore's models
    wall, cpu = time.perf_counter(), time.process_time()
    result = upload(s3, scan_directory(config), config.name, at.bucket, at.prefix)
    return {
        "wall_seconds": round(time.perf_counter() - wall, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "sent_bytes": result.sent_bytes,
        "opened": len(opened),
    }


def _ours(bench: Bench, folder: Path, bucket: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.s3.upload", "--measure"]
    arguments = [bench.endpoint, bench.credentials, str(bench.state_dir), str(folder), bucket]
    done = subprocess.run(
        [*command, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=1800,
        env=os.environ | {"AWS_SHARED_CREDENTIALS_FILE": str(bench.state_dir / _KEYS)},
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _aws(bench: Bench, folder: Path, bucket: str, is_crt: bool = False) -> dict[str, Any]:
    """Run `aws s3 cp --recursive` and return its wall and CPU seconds."""
    client = "crt" if is_crt else "default"
    settings = bench.state_dir / f"aws-{client}.ini"
    settings.write_text(
        f"[default]\nregion = us-east-1\ns3 =\n  preferred_transfer_client = {client}\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(bench.state_dir),
        "AWS_CONFIG_FILE": str(settings),
        "AWS_SHARED_CREDENTIALS_FILE": str(bench.state_dir / _KEYS),
    }
    command = [str(bench.crt) if is_crt else bench.aws, "s3", "cp", "--recursive"]
    command += [
        "--only-show-errors",
        "--endpoint-url",
        bench.endpoint,
        str(folder),
        f"s3://{bucket}/",
    ]
    wall, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=1800)
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return {"wall_seconds": round(time.perf_counter() - wall, 3), "cpu_seconds": round(used, 3)}


def measure(bench: Bench, way: str, folder: Path, bucket: str) -> dict[str, Any]:
    """Measure one upload, including the server's CPU time."""
    server = bench.server_cpu_seconds()
    if way in ("ours", "again"):
        found = _ours(bench, folder, bucket)
    else:
        found = _aws(bench, folder, bucket, is_crt=way.startswith("crt"))
    found["server_cpu_seconds"] = round(bench.server_cpu_seconds() - server, 2)
    print(f"{folder.name:14} {way:10} {found}", flush=True)
    return found


@contextmanager
def fresh_bucket(bench: Bench, bucket: str) -> Iterator[str]:
    """Yield a bucket for one upload; it is created only if the server keeps objects."""
    if not bench.keeps:
        yield bucket
        return
    from nodesweep.aws.platform import aws_client

    s3 = aws_client("s3", bench.platform_config("unused"))
    s3.create_bucket(Bucket=bucket)
    try:
        yield bucket
    finally:
        empty_bucket(s3, bucket)


def empty_bucket(s3: Any, bucket: str) -> None:
    """Delete the bucket with its objects, which the platform keeps in memory and on disk."""
    while found := s3.list_objects_v2(Bucket=bucket).get("Contents"):
        keys = [{"Key": item["Key"]} for item in found]
        s3.delete_objects(Bucket=bucket, Delete={"Objects": keys})
    s3.delete_bucket(Bucket=bucket)


def compare(
    bench: Bench, scratch: Path, cases: Mapping[str, tuple[int, int]], repeats: int
) -> dict[str, Any]:
    """Return every case's runs, medians and ratios."""
    empty = scratch / "empty"
    empty.mkdir(exist_ok=True)
    ways = ["ours", "aws", *(["crt"] if bench.crt else [])]
    starts: dict[str, list[dict[str, Any]]] = {way: [] for way in ways[1:]}
    for way, measured in starts.items():
        with fresh_bucket(bench, "empty") as bucket:
            measured += [measure(bench, way, empty, bucket) for _ in range(repeats)]
    result = {}
    for case, (files, size) in cases.items():
        folder = scratch / case.replace(" ", "").replace(",", "")
        write_data(folder, files, size)
        time.sleep(_SETTLE_SECONDS)
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        if bench.keeps:
            runs["again"] = []
        for repeat in range(repeats):
            for way in ways if repeat % 2 == 0 else reversed(ways):
                if way == "ours":  # its hash cache is for another folder each time
                    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=scratch)
                with fresh_bucket(bench, f"bench-{way}") as bucket:
                    runs[way].append(measure(bench, way, folder, bucket))
                    if way == "ours" and bench.keeps:
                        runs["again"].append(measure(bench, "again", folder, bucket))
        shutil.rmtree(folder)
        result[case] = {"runs": runs, **summarise(runs, starts)}
    return {"starts": starts, "cases": result}


def summarise(
    runs: Mapping[str, list[dict[str, Any]]], starts: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return medians of each way, and the median ratio to `ours` over the repeats.

    Start-up is subtracted from the others; `with_start` includes it.
    """
    keys = ("wall_seconds", "cpu_seconds", "server_cpu_seconds")
    middle = {
        way: {
            **{key: median(run[key] for run in some) for key in keys},
            "server_share_of_cpu": round(median(map(_server_share, some)), 2),
        }
        for way, some in runs.items()
    }
    ratios: dict[str, Any] = {}
    for way, started in starts.items():
        off = median(run["wall_seconds"] for run in started)
        pairs = list(zip(runs[way], runs["ours"], strict=True))
        ratios[way] = {
            "times_as_fast": round(
                median((a["wall_seconds"] - off) / b["wall_seconds"] for a, b in pairs), 2
            ),
            "with_start": round(median(a["wall_seconds"] / b["wall_seconds"] for a, b in pairs), 2),
        }
    return {"median": middle, "ratio": ratios}


def _server_share(run: Mapping[str, Any]) -> float:
    """Return the share of all CPU time that the platform's server used; no client can save it."""
    server = float(run["server_cpu_seconds"])
    return server / max(server + float(run["cpu_seconds"]), 1e-9)


@contextmanager
def served(state_dir: Path) -> Iterator[str]:
    """Run a local platform in another process and yield its endpoint."""
    command = [sys.executable, "-m", "sagemaker_emulator"]
    place = ["--state-dir", str(state_dir)]
    owner = ["--owner-pid", str(os.getpid())]
    start = [*command, "start", "--port", "4571", "--or-free-port", *place, *owner]
    subprocess.run(start, check=True, capture_output=True, timeout=120)
    try:
        yield str(json.loads((state_dir / "server.json").read_text())["endpoint"])
    finally:
        subprocess.run([*command, "stop", *place], check=True, capture_output=True, timeout=120)


@contextmanager
def stand_in(state_dir: Path, answer_after_seconds: float) -> Iterator[tuple[str, int]]:
    """Run a server that discards objects and yield its endpoint and process id.

    Keys are written to `state_dir`.
    """
    state_dir.mkdir()
    (state_dir / _KEYS).write_text(
        "[default]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n"
    )
    command = [sys.executable, "-m", "benchmarks.s3.stand_in"]
    command += ["--answer-after-seconds", str(answer_after_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


def compare_on(name: str, scratch: Path, repeats: int, aws: str, crt: str | None) -> dict[str, Any]:
    """Run compare() on the server of that name."""
    state_dir = scratch / name.replace(" ", "-")
    if name == PLATFORM:
        with served(state_dir) as endpoint:
            bench = Bench(endpoint, state_dir, "platform", aws, crt)
            return compare(bench, scratch, CASES, repeats)
    with stand_in(state_dir, STAND_INS[name]) as (endpoint, pid):
        bench = Bench(endpoint, state_dir, "chain", aws, crt, pid)
        return compare(bench, scratch, CASES, repeats)


def problems(servers: Mapping[str, Any]) -> list[str]:
    """Return the missed goals, one line each."""
    found = []
    for server, measured in servers.items():
        for case, its in measured["cases"].items():
            times = its["ratio"]["aws"]["times_as_fast"]
            if server in STAND_INS and times < GOAL_RATIO:
                found.append(
                    f"{server}, {case}: {times} times as fast as aws s3 cp, but the goal is"
                    f" {GOAL_RATIO}"
                )
            if any(run["sent_bytes"] or run["opened"] for run in its["runs"].get("again", ())):
                found.append(f"{server}, {case}: a second run sent bytes or opened files")
    return found


def main() -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="uploads per way")
    parser.add_argument(
        "--aws", default=str(Path(sys.executable).parent / "aws"), help="AWS CLI to compare with"
    )
    parser.add_argument(
        "--crt", metavar="AWS_CLI_2", help="AWS CLI 2, to compare with its CRT client too"
    )
    known = (PLATFORM, *STAND_INS)
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=known,
        default=known,
        metavar="NAME",
        help="servers to upload to",
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        endpoint, credentials, state_dir, folder, bucket = options.measure
        bench = Bench(endpoint, Path(state_dir), credentials)
        print(json.dumps(upload_ours(bench, Path(folder), bucket)))
        return 0
    with tempfile.TemporaryDirectory(prefix="nodesweep-upload-") as scratch:
        servers = {
            name: compare_on(name, Path(scratch), options.repeats, options.aws, options.crt)
            for name in options.servers
        }
    aws_version = subprocess.run([options.aws, "--version"], capture_output=True, text=True)
    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "load_at_end": [round(value, 1) for value in os.getloadavg()],
        "versions": {
            "aws": aws_version.stdout.split()[0],
            **{name: version(name) for name in ("boto3", "moto")},
        },
        "servers": servers,
    }
    for name, measured in servers.items():
        for case, its in measured["cases"].items():
            print(name, case, json.dumps({key: its[key] for key in ("median", "ratio")}))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    missed = problems(servers)
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
