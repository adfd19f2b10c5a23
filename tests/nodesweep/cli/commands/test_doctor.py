"""`nodesweep doctor`: a line and a remedy for each check, and its exit code."""

from __future__ import annotations

import socket
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands import doctor
from nodesweep.cli.commands.doctor import Finding, examine
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.validation import ValidationConfig
from tests.nodesweep.launch.slurm.cluster import slurm_platform
from tests.plain import plain

Usage = namedtuple("Usage", "total used free")
CONFIG = doctor.read_config(Path("local"))


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def local() -> Callable[..., BenchmarkConfig]:
    """Return local(endpoint_url=…), which returns the shipped config with its platform changed."""
    return lambda **platform: CONFIG.model_copy(
        update={"platform": CONFIG.platform.model_copy(update=platform)}
    )


@pytest.fixture
def stranger() -> Iterator[str]:
    """The URL of a program that hangs up on every caller."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join(300)


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("missing", 3)])
def test_what_is_missing_decides_the_exit_code(
    state: doctor.State, code: int, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    found = [("Python", Finding("ok", "3.11")), ("disk", Finding(state, "little", "make room"))]
    monkeypatch.setattr(doctor, "examine", lambda config: found)
    result = nodesweep("doctor")
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1] == snapshot
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[1:3] == [[state, "disk", "little"], ["to", "do:", "make", "room"]]


def test_a_config_that_is_none_is_bad_input() -> None:
    result = nodesweep("doctor", "--config", "nowhere.yaml")
    assert (result.exit_code, "nowhere.yaml" in result.stderr) == (2, True)


def test_each_config_gets_the_checks_it_needs(
    make_config: Callable[..., BenchmarkConfig],
    local: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in vars(doctor) if name.startswith("check_")]:
        monkeypatch.setattr(doctor, name, lambda config: Finding("ok", "seen"))
    here = [
        "Python",
        "folders",
        "disk",
        "Prefect",
        "local platform",
        "control groups",
        "containers",
        "Java",
    ]
    assert [name for name, _ in examine(local())] == [*here, "port"]
    on_aws = make_config(platform={"endpoint_url": None, "credentials": "chain"})
    assert [name for name, _ in examine(on_aws)] == [*here[:4], "credentials", "quotas"]


def test_a_check_that_hangs_or_breaks_costs_its_line_alone(
    local: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    over = threading.Event()

    def hangs(config: BenchmarkConfig) -> Finding:
        over.wait(300)
        return Finding("ok", "too late")

    def breaks(config: BenchmarkConfig) -> Finding:
        raise RuntimeError("no such luck")

    for name in [name for name in vars(doctor) if name.startswith("check_")]:
        monkeypatch.setattr(doctor, name, lambda config: Finding("ok", "seen"))
    monkeypatch.setattr(doctor, "check_disk", hangs)
    monkeypatch.setattr(doctor, "check_port", breaks)
    found = dict(examine(local(), seconds=3.0))
    over.set()
    assert {found[name].state for name in ("disk", "port")} == {"warning"}
    assert found["disk"].text == snapshot
    assert found["port"].text == snapshot


def test_prefect_is_looked_at_in_a_process_that_has_a_deadline(
    local: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(doctor, "_PREFECT_SECONDS", 300.0)
    assert doctor.check_prefect(local()).state == "missing"
    monkeypatch.setattr(doctor, "_PREFECT_SECONDS", 0.01)
    late = doctor.check_prefect(local())
    assert (late.state, "0.01 s" in late.text) == ("warning", True)


@pytest.mark.parametrize(("gigabytes", "state"), [(50, "ok"), (5, "warning"), (1, "missing")])
def test_disk(
    local: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    gigabytes: int,
    state: str,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1)  # as root, podman is asked where its images lie
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, gigabytes * 2**30))
    finding = doctor.check_disk(local())
    assert (finding.state, f"{gigabytes}.0 GiB free" in finding.text) == (state, True)
    assert doctor.check_disk(local(autostart=False)).state == "ok"


@pytest.mark.parametrize(
    ("full", "state"),
    [("reports", "missing"), ("cache", "missing"), ("tmp", "missing"), ("images", "missing"),
     ("elsewhere", "ok")],
)  # fmt: skip
def test_disk_of_every_folder_that_a_run_writes_to(
    local: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    empty_folder: Path,
    full: str,
    state: str,
) -> None:
    for name in ("reports", "cache/nodesweep", "tmp", "images", "bin"):
        (empty_folder / name).mkdir(parents=True)
    podman = empty_folder / "bin" / "podman"
    podman.write_text(f"#!/bin/sh\necho {empty_folder}/images/storage\n")
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{podman.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_folder / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(empty_folder / "tmp"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    place = empty_folder / full

    def free(path: Path) -> Usage:
        return Usage(0, 0, (0 if place in (path, path.parent) else 50) * 2**30)

    monkeypatch.setattr("shutil.disk_usage", free)
    finding = doctor.check_disk(local())
    assert finding.state == state
    assert (str(place) in finding.remedy) == (state == "missing")
    for name in ("reports", "cache/nodesweep", "tmp", "images"):
        free_gigabytes = 0 if place in ((empty_folder / name), (empty_folder / name).parent) else 50
        assert f"{free_gigabytes}.0 GiB free at {empty_folder / name} (" in finding.text


def test_disk_of_the_clusters_folder(empty_folder: Path) -> None:
    config = CONFIG.model_copy(update={"platform": slurm_platform(empty_folder / "shared")})
    (empty_folder / "shared").mkdir()
    assert f"free at {empty_folder / 'shared'} (code and results)" in doctor.check_disk(config).text


def test_disk_of_a_container_program_that_does_not_respond_is_unknown(
    local: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch, empty_folder: Path
) -> None:
    podman = empty_folder / "podman"
    podman.write_text("#!/bin/sh\nexit 125\n")
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", str(empty_folder))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, 50 * 2**30))
    finding = doctor.check_disk(local())
    assert finding.state == "ok" and "(containers)" not in finding.text


def test_folders_that_can_not_be_written_or_are_not_there(
    local: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    empty_folder: Path,
    snapshot: SnapshotAssertion,
) -> None:
    assert doctor.check_folders(local()).state == "ok"
    assert list(empty_folder.iterdir()) == []
    monkeypatch.setattr("os.access", lambda path, mode: False)
    finding = doctor.check_folders(local())
    assert (finding.state, "report.directory" in finding.remedy) == ("missing", True)
    assert plain(finding.text, folder=empty_folder) == snapshot
    dataset = CONFIG.dataset.model_copy(update={"source": "nowhere"}) if CONFIG.dataset else None
    finding = doctor.check_folders(CONFIG.model_copy(update={"dataset": dataset}))
    assert (finding.state, "dataset.source" in finding.text) == ("missing", True)


def test_a_python_and_packages_that_do_not_fit(
    local: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    assert doctor.check_python(local()).state == doctor.check_packages(local()).state == "ok"
    monkeypatch.setattr("sys.version_info", (3, 13, 1))
    python = doctor.check_python(local())
    assert python.state == "missing"
    assert (python.text, python.remedy) == snapshot
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    packages = doctor.check_packages(local())
    assert (packages.state, "sagemaker-emulator" in packages.text) == ("missing", True)


def test_control_groups_are_asked_of_the_platforms_own_program(
    local: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PROGRAM_SECONDS", 300.0)
    finding = doctor.check_control_groups(local())
    assert (finding.state, "cgroup" in finding.text) in {("ok", True), ("warning", True)}


def test_programs_that_do_not_end_are_warnings(
    local: Callable[..., BenchmarkConfig],
    spark: BenchmarkConfig,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_PROGRAM_SECONDS", 0.01)
    groups = doctor.check_control_groups(local())
    assert (groups.state, groups.text) == ("warning", "could not be checked")
    java = empty_folder / "java"
    java.write_text("#!/bin/sh\nwhile :; do :; done\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(empty_folder))
    found = doctor.check_java(spark)
    assert (found.state, "does not report its version" in found.text) == ("warning", True)


def test_without_a_container_program_nodes_are_processes(
    local: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert doctor.check_containers(local()).state == "warning"
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert doctor.check_containers(local()).text.startswith("/bin/podman")


@pytest.fixture
def spark(local: Callable[..., BenchmarkConfig]) -> BenchmarkConfig:
    """The shipped config, whose dataset Spark validates."""
    validation = ValidationConfig(engine="spark")
    dataset = CONFIG.dataset.model_copy(update={"validation": validation})
    return local().model_copy(update={"dataset": dataset})


@pytest.mark.parametrize(
    ("says", "state"),
    [
        (None, "warning"),
        ('openjdk version "17.0.17" 2025-10-21', "ok"),
        ('openjdk version "25" 2025-09-16', "ok"),
        ('java version "1.8.0_452"', "warning"),
        ("no JVM was found", "warning"),
    ],
)
def test_java_is_wanted_by_spark_alone(
    says: str | None,
    state: str,
    spark: BenchmarkConfig,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    java = empty_folder / "java"
    if says is not None:
        java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("PATH", str(empty_folder))
    wanted = doctor.check_java(spark)
    assert wanted.state == state
    assert plain(wanted.text, java=java) == snapshot
    assert ("openjdk-17-jre-headless" in wanted.remedy) == (state == "warning")
    idle = doctor.check_java(CONFIG)
    assert idle.state == "ok" and idle.text.startswith(wanted.text)
    assert idle.remedy.startswith("none needed") == (state == "warning")
    assert ("dataset.validation.engine" in idle.text) == (state == "warning")


def test_whose_port_it_is(
    local: Callable[..., BenchmarkConfig],
    stranger: str,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert plain(doctor.check_port(local(endpoint_url=free)).text, url=free) == snapshot
    assert doctor.check_port(local(endpoint_url=free, autostart=False)).state == "missing"
    taken = doctor.check_port(local(endpoint_url=stranger))
    assert (taken.state, taken.remedy) == ("ok", "")
    assert plain(taken.text, url=stranger) == snapshot
    assert doctor.check_port(local(endpoint_url=stranger, autostart=False)).state == "warning"
    monkeypatch.setattr(doctor, "read_key", lambda folder: None)
    monkeypatch.setattr(doctor, "own_status", lambda *asked: {"running": True})
    own = doctor.check_port(local(endpoint_url=stranger))
    assert plain(own.text, url=stranger, state=CONFIG.platform.state_directory) == snapshot


class Account:
    """Responses of STS and Service Quotas."""

    def __init__(self, quota: float) -> None:
        self.quota = quota

    def get_caller_identity(self) -> dict[str, str]:
        arn = "arn:aws:sts::123456789012:assumed-role/Measurer/me"
        return {"Arn": arn, "Account": "123456789012"}

    def get_paginator(self, name: str) -> Account:
        return self

    def paginate(self, **asked: Any) -> list[dict[str, Any]]:
        name = "ml.p3.16xlarge for training job usage"
        return [{"Quotas": [{"QuotaName": name, "Value": self.quota}]}]


@pytest.mark.parametrize(("quota", "state"), [(64.0, "ok"), (1.0, "missing")])
def test_account(quota: float, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = doctor.read_config(Path("search_mlp_p3"))
    monkeypatch.setattr("nodesweep.aws.platform.aws_client", lambda *asked, **how: Account(quota))
    who = doctor.check_credentials(config)
    assert who.state == "ok" and "123456789012" not in who.text
    assert all(fact in who.text for fact in ("Measurer/me", "…9012", "us-east-1"))
    finding = doctor.check_quotas(config)
    assert finding.state == state, finding
    assert "ml.p3.16xlarge" in finding.text


def test_variants_on_one_type_share_its_quota(
    make_config: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    fp16 = {"name": "fp16", "set": {"training.hyperparameters.precision": "16"}}
    config = make_config(
        sweep={"node_counts": [4], "repeats": 1, "max_parallel_jobs": 2, "variants": [fp16]},
        training={"instance_type": "ml.p3.16xlarge"},
    )
    for quota, text in ((8.0, "enough for 8 x ml.p3.16xlarge at once"), (7.0, "needs 8")):
        account = Account(quota)
        monkeypatch.setattr("nodesweep.aws.platform.aws_client", lambda *_, one=account, **how: one)
        assert doctor.check_quotas(config).text.count(text) == 1


def test_without_credentials_nothing_can_start(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    from botocore.exceptions import NoCredentialsError

    def refuse(*asked: Any, **how: Any) -> Any:
        raise NoCredentialsError

    monkeypatch.setattr("nodesweep.aws.platform.aws_client", refuse)
    config = doctor.read_config(Path("search_mlp_p3"))
    who, quotas = doctor.check_credentials(config), doctor.check_quotas(config)
    assert (who.state, str(NoCredentialsError()) in who.text) == ("missing", True)
    assert (quotas.state, quotas.remedy) == ("warning", "")
    assert quotas.text == snapshot
