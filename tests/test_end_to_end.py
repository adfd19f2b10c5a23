"""The complete pipeline: the platform as a separate process, the toolkit, torch, gloo, and
`nodesweep` as a user runs it."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from benchmarks.ports import free_port
from nodesweep.aws.local_keys import local_session
from nodesweep.configs.load import load_config
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from tests.kingfisher import findings
from tests.processes.prefect_home import with_tables

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[1]
NODE_MARKER = "NODESWEEP_NODE="
# Where pytest puts this run's temporary folders: nodes from elsewhere are not ours.
_OWN_FOLDERS: list[Path] = []
HANG_SECONDS = 1200.0
"""A limit that only a hang reaches."""
QUICK = {"epochs": 2, "passes-per-epoch": 10}
BATCH = {"policy": "fixed_global", "size": 8192}


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, image_store: ProcessImageStore
) -> SimpleNamespace:
    """A folder for runs, with a platform state that already has virtual environments."""
    folder = tmp_path_factory.mktemp("end-to-end")
    _OWN_FOLDERS[:] = [tmp_path_factory.getbasetemp()]
    state = folder / "state"
    state.mkdir()
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    port = free_port()
    return SimpleNamespace(
        folder=folder,
        state=state,
        endpoint=f"http://127.0.0.1:{port}",
        port=str(port),
        prefect_home=with_tables(tmp_path_factory.mktemp("prefect")),
    )


@pytest.fixture(scope="module")
def platform_process(site: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The platform, which runs for the whole module."""
    arguments = ["--port", site.port, "--state-dir", str(site.state)]
    subprocess.run([sys.executable, "-m", "sagemaker_emulator", "start", *arguments], check=True)
    try:
        yield site
    finally:
        subprocess.run(
            [sys.executable, "-m", "sagemaker_emulator", "stop", *arguments],
            check=True,
            timeout=300,
        )
        assert node_processes() == []


def node_processes(ending: str = "") -> list[int]:
    """Return every process of an emulated node with this name suffix that was started from this
    module's folders."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it ended, or is not ours
            continue
        is_node = any(
            entry.startswith(NODE_MARKER) and entry.endswith(ending) for entry in variables
        )
        if is_node and any(str(_OWN_FOLDERS[0]) in entry for entry in variables):
            found.append(int(folder.name))
    return found


def prefect_servers(mark: str) -> set[int]:
    """Return every Prefect server of a command whose environment has this value of TEST_OF."""
    found, variable = set(), f"TEST_OF={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_server = b"ephemeral_prefect.py" in (folder / "cmdline").read_bytes()
            if is_server and variable in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def write_config(site: SimpleNamespace, name: str, **changes: Any) -> Path:
    """Write configs/local.yaml with this test's platform and `changes`, which is quick unless they
    set the training."""
    raw = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())
    raw["name"] = name
    raw["dataset"]["source"] = str(REPOSITORY / "configs" / "data" / "digits")
    raw["image"]["context"] = str(REPOSITORY / "infra" / "image")
    raw["platform"]["endpoint_url"] = site.endpoint
    raw["platform"]["state_directory"] = str(site.state)
    raw["sweep"]["node_counts"] = [1, 2]
    raw["training"]["batch"] = BATCH
    for section, values in changes.items():
        raw[section] = {**raw[section], **values}
    raw["training"].pop("baseline_seconds")  # an amount of its own
    raw["sweep"].setdefault("max_retries", 0)  # what other tests contend is not repeated
    if "training" not in changes:
        raw["training"]["hyperparameters"].update(QUICK)
    path = site.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def environment(site: SimpleNamespace, mark: str = "") -> dict[str, str]:
    """Return the environment of a command, whose Prefect server has a separate database."""
    own = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", "TEST_OF": mark}
    return {**os.environ, **own, "PREFECT_HOME": str(site.prefect_home)}


def nodesweep(
    site: SimpleNamespace, *arguments: str, timeout: float = HANG_SECONDS, mark: str = ""
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodesweep", *arguments]
    return subprocess.run(
        command,
        cwd=site.folder,
        env=environment(site, mark),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def client(site: SimpleNamespace, service: str) -> Any:
    own = local_session(site.endpoint, "us-east-1", site.state)
    return own.client(service, endpoint_url=site.endpoint)


def jobs_of(site: SimpleNamespace, benchmark: str) -> list[dict[str, Any]]:
    found = client(site, "sagemaker").list_training_jobs(NameContains=f"{benchmark}-")
    return list(found["TrainingJobSummaries"])


def latest_report(site: SimpleNamespace) -> dict[str, Any]:
    return json.loads((site.folder / "reports" / "latest" / "report.json").read_text())


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + HANG_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"nothing within {HANG_SECONDS} s"
        time.sleep(0.2)
    return value


def test_sweep_of_real_jobs_reports_what_they_measured(platform_process: SimpleNamespace) -> None:
    """1 and 2 nodes train on the digits; the table's speedup is that of the jobs' own metrics
    files.
    """
    config = write_config(platform_process, "e2e")
    done = nodesweep(platform_process, "run", str(config))
    assert done.returncode == 0, done.stderr
    report = latest_report(platform_process)
    s3, bucket = client(platform_process, "s3"), load_config(config).platform.bucket
    train_seconds = {}
    for point in report["points"]:
        key = f"nodesweep/sweeps/{report['sweep_id']}/jobs/{point['job_name']}/output/output.tar.gz"
        with tarfile.open(
            fileobj=io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        ) as tar:
            metrics = json.load(tar.extractfile("metrics.json"))  # type: ignore[arg-type]
        assert metrics["world"]["world_size"] == point["nodes"] == point["world_size"]
        assert metrics["batch"]["global_batch_size"] == point["global_batch_size"] == 8192
        assert point["clocks"]["train_seconds"] == metrics["train_seconds"]
        # What the platform says of its nodes, and what the program saw of its own control group at
        # run_start, agree.
        is_isolated = report["platform"]["isolation"].startswith("0.1 vCPU per node")
        assert metrics["device"]["cpu_quota_cores"] == (0.1 if is_isolated else None)
        train_seconds[point["nodes"]] = metrics["train_seconds"]
    speedup = {row["nodes"]: row["clocks"]["train"]["speedup"] for row in report["summary"]}
    assert speedup[2] == pytest.approx(train_seconds[1] / train_seconds[2])
    assert report["platform"]["kind"] == "emulated"
    assert "emulated" in done.stdout and "report.html" in done.stdout
    assert "Training" in done.stderr and "job 2/2" in done.stderr


def test_a_finished_run_and_the_image_that_it_built_hold_no_secret(
    platform_process: SimpleNamespace,
) -> None:
    """The run's folder: configs, reports, and the platform's state with its bucket, jobs, logs and
    images.

    What lies behind links is left out: the packages, which come from their index with hashes.
    """
    folder, state = platform_process.folder, platform_process.state
    assert list(state.rglob("train.py")) and list((folder / "reports").rglob("report.html")), (
        "there is what to scan"
    )
    assert findings(folder, confidence="medium") == set()


def test_killed_node_fails_its_point_and_spares_the_other(
    platform_process: SimpleNamespace,
) -> None:
    """kill -9 of one node's processes in the middle of the 2-node training; the 1-node point is
    kept.
    """
    raw = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["training"]
    slow = {
        **raw,
        "instance_type": "ml.local.medium",
        "batch": BATCH,
        "hyperparameters": {**raw["hyperparameters"], "epochs": 40, "passes-per-epoch": 10},
    }
    config = write_config(
        platform_process,
        "killed",
        training=slow,
        sweep={"node_counts": [2, 1], "order": "descending", "smoke": "never"},
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "nodesweep", "run", str(config), "--set",
         "training.hyperparameters.max-steps=40"],
        cwd=platform_process.folder, env=environment(platform_process), stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        logs = client(platform_process, "logs")
        wait_until(lambda: _says(logs, "killed-", "step="))
        for pid in node_processes("algo-2"):
            os.kill(pid, signal.SIGKILL)
        _, stderr = run.communicate(timeout=HANG_SECONDS)
    finally:
        run.kill()
    report = latest_report(platform_process)
    points = {point["nodes"]: point for point in report["points"]}
    assert run.returncode == 1, stderr
    assert points[2]["status"] == "Failed" and "algo-2" in points[2]["reason"], points[2]
    assert points[2]["log_tail"]
    assert points[1]["status"] == "Completed"
    assert len(jobs_of(platform_process, "killed")) == 2
    assert node_processes() == []


def _says(logs: Any, prefix: str, text: str) -> bool:
    group = "/aws/sagemaker/TrainingJobs"
    try:
        streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=prefix)[
            "logStreams"
        ]
    except logs.exceptions.ResourceNotFoundException:
        return False
    return any(
        text in event["message"]
        for stream in streams
        for event in logs.get_log_events(logGroupName=group, logStreamName=stream["logStreamName"])[
            "events"
        ]
    )


def test_broken_dataset_stops_the_run_and_says_where(platform_process: SimpleNamespace) -> None:
    source = platform_process.folder / "broken"
    source.mkdir()
    for shard in sorted((REPOSITORY / "configs" / "data" / "digits").glob("*.parquet")):
        frame = pd.read_parquet(shard)
        if shard.name == "part-3.parquet":
            frame["label"] = frame["label"].astype("uint8").where(frame.index != frame.index[5], 77)
        frame.to_parquet(source / shard.name)
    config = write_config(
        platform_process, "broken", dataset={**_dataset(), "name": "broken", "source": str(source)}
    )
    done = nodesweep(platform_process, "run", str(config))
    assert done.returncode == 1
    assert "'label'" in done.stderr and "77" in done.stderr and "part-3.parquet" in done.stderr
    assert "Traceback" not in done.stderr
    assert jobs_of(platform_process, "broken") == []
    [folder] = (platform_process.folder / "reports").glob("broken-*")
    assert "77" in (folder / "data-docs.html").read_text()


def _dataset() -> dict[str, Any]:
    return dict(yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["dataset"])


CUT_OFF = """
import os, sys
from pathlib import Path
from nodesweep.configs.load import load_config
from nodesweep.tasks.dataset import files as dataset
from nodesweep.tasks.dataset import sending
from nodesweep.aws.platform import aws_client
from nodesweep.launch.registry import backend_of

config = load_config(Path(sys.argv[1]))
files = dataset.scan_directory(config.dataset)
s3 = aws_client("s3", config.platform)
backend_of(config.platform).store.prepare()
sending.SINGLE_PUT_BYTES = sending.PART_BYTES
parts = []

def die_in_the_middle(**event):
    parts.append(1)
    if len(parts) == 2:
        os._exit(9)

# The second part of the multipart upload never goes out: one file half-sent, the other not at all.
s3.meta.events.register("before-send.s3.UploadPart", die_in_the_middle)
platform = config.platform
dataset.upload(s3, files, config.dataset.name, platform.bucket, platform.prefix)
"""


def test_upload_that_was_cut_off_is_resumed(platform_process: SimpleNamespace) -> None:
    """The process dies inside a multipart upload; the next run sends what is missing and trains on
    intact data.
    """
    source = platform_process.folder / "large"
    source.mkdir()
    shards = sorted((REPOSITORY / "configs" / "data" / "digits").glob("*.parquet"))
    table = pd.concat([pd.read_parquet(shard) for shard in shards], ignore_index=True)
    table.to_parquet(source / "b.parquet")
    wide = pd.concat([table] * 50, ignore_index=True)
    wide.to_parquet(
        source / "a.parquet", compression=None, use_dictionary=False, column_encoding="PLAIN"
    )
    assert (source / "a.parquet").stat().st_size > 20_000_000
    config = write_config(
        platform_process,
        "resumed",
        dataset={
            "name": "large",
            "source": str(source),
            "expectations": _dataset()["expectations"][1:3],
            "min_rows": None,
            "max_rows": None,
        },
        sweep={"node_counts": [1]},
    )
    died = subprocess.run(
        [sys.executable, "-c", CUT_OFF, str(config)],
        env=environment(platform_process),
        timeout=300,
        check=False,
    )
    assert died.returncode == 9
    done = nodesweep(
        platform_process, "run", str(config), "--set", "training.hyperparameters.max-steps=5",
        "--set", "training.hyperparameters.epochs=1", "--set",
        "training.hyperparameters.passes-per-epoch=1", "--set",
        "training.instance_type=ml.local.large",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    total = sum(path.stat().st_size for path in source.iterdir())
    assert f": {total} bytes sent" in done.stderr


@pytest.fixture
def autostarted(site: SimpleNamespace, tmp_path: Path) -> SimpleNamespace:
    """Return the platform section and port of a config that starts its own platform, and the mark
    of its command's processes."""
    port = free_port()
    state = tmp_path / "state"
    state.mkdir()
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    raw = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["platform"]
    section = {**raw, "endpoint_url": f"http://127.0.0.1:{port}", "state_directory": str(state)}
    return SimpleNamespace(section=section, port=port, mark=str(tmp_path))


def is_silent(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_platform_started_for_a_command_ends_with_it(
    site: SimpleNamespace, autostarted: SimpleNamespace
) -> None:
    """This also holds if the command fails: an unknown sweep causes one message and exit code 1."""
    config = write_config(site, "autostarted", platform=autostarted.section)
    unknown = ("report", "autostarted-20260101000000-00000000", "--config", str(config))
    done = nodesweep(site, *unknown, mark=autostarted.mark)
    assert done.returncode == 1, done.stderr
    assert "no sweep autostarted-20260101000000-00000000" in done.stderr
    assert "Traceback" not in done.stderr
    assert is_silent(autostarted.port)
    assert prefect_servers(autostarted.mark) == set()


def test_killed_run_leaves_no_process(site: SimpleNamespace, autostarted: SimpleNamespace) -> None:
    """kill -9 of a run that started the platform itself: platform, nodes and Prefect's server end
    with it.
    """
    config = write_config(site, "orphan", platform=autostarted.section, sweep={"node_counts": [2]})
    run = subprocess.Popen(
        [sys.executable, "-m", "nodesweep", "run", str(config)], cwd=site.folder,
        env=environment(site, autostarted.mark), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        nodes = wait_until(node_processes)
        servers = prefect_servers(autostarted.mark)
    finally:
        run.kill()
    assert nodes and servers
    wait_until(lambda: not node_processes())
    wait_until(lambda: not prefect_servers(autostarted.mark))
    wait_until(lambda: is_silent(autostarted.port))


def test_own_script_without_metrics_is_timed_by_the_platform(
    platform_process: SimpleNamespace,
) -> None:
    """The script knows nothing of nodesweep; its report falls back to the Training phase and says
    so.

    Image and data are those of the first run.
    """
    code = platform_process.folder / "own-code"
    code.mkdir()
    (code / "mine.py").write_text(
        "import sys, time; print('arguments', sys.argv[1:]); time.sleep(1)\n"
    )
    training = {
        **yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["training"],
        "entry_point": "mine.py",
        "source_dir": str(code),
        "instance_type": "ml.local.large",
        "hyperparameters": {"batch": "{per_replica_batch_size}"},
    }
    config = write_config(platform_process, "own", training=training, sweep={"node_counts": [1]})
    done = nodesweep(platform_process, "run", str(config))
    assert done.returncode == 0, done.stderr
    assert ": 0 bytes sent" in done.stderr and "building it" not in done.stderr
    [point] = latest_report(platform_process)["points"]
    assert point["train_clock"] == "training_phase"
    assert point["clocks"]["train_seconds"] >= 1
    report = platform_process.folder / "reports" / "latest" / "report.md"
    assert "Training phase" in report.read_text()


def test_interrupted_run_stops_its_job(platform_process: SimpleNamespace) -> None:
    """After Ctrl-C while a job trains, the job is stopped, the exit code is 1, and `stop` finds
    nothing left to stop."""
    raw = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["training"]
    hyperparameters = {**raw["hyperparameters"], "passes-per-epoch": 2000}
    long = {**raw, "instance_type": "ml.local.large", "hyperparameters": hyperparameters}
    config = write_config(
        platform_process, "interrupted", training=long, sweep={"node_counts": [1]}
    )

    def jobs() -> list[dict[str, Any]]:
        return jobs_of(platform_process, "interrupted")

    run = subprocess.Popen(
        [sys.executable, "-m", "nodesweep", "run", str(config)], cwd=platform_process.folder,
        env=environment(platform_process), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: jobs() and node_processes())
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=HANG_SECONDS)
    finally:
        run.kill()
    assert run.returncode == 1 and "interrupted" in stderr, stderr
    assert "Traceback" not in stderr
    wait_until(lambda: jobs()[0]["TrainingJobStatus"] == "Stopped")
    sweep = jobs()[0]["TrainingJobName"].rsplit("-n", 1)[0]
    stopped = nodesweep(platform_process, "stop", sweep)
    assert stopped.returncode == 0, stopped.stderr
    assert jobs()[0]["TrainingJobName"] not in stopped.stdout
