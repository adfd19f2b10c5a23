"""`nodesweep doctor`: check that a run can start here; one line per check, with its remedy.

Every check has a deadline and changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nodesweep.aws.local_status import (
    KeyUnreadable,
    NotLocalPlatform,
    own_status,
    read_key,
    read_status,
    served_endpoint,
)
from nodesweep.cli.guard import PREFLIGHT_REFUSED
from nodesweep.cli.inputs import read_config
from nodesweep.cli.local_platform import EMULATOR_REMEDY
from nodesweep.cli.output import print_rendered, print_text
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.price_list import cache_folder

CHECK_SECONDS = 30.0
_CALL_SECONDS, _PREFECT_SECONDS, _PROGRAM_SECONDS = 5.0, 25.0, 25.0
_ANSWER_SECONDS = 10.0  # for a platform, which is asked at most twice within CHECK_SECONDS
_LEAST_JAVA, _INSTALL_JAVA = 17, "apt-get install openjdk-17-jre-headless"
_IMAGES_BYTES, _FILES_BYTES = (2 * 2**30, 10 * 2**30), (100 * 2**20, 2**30)
"""Free bytes that a run needs to start, and that are certainly enough."""
_STORAGE_FORMATS = {"podman": "{{.Store.GraphRoot}}", "docker": "{{.DockerRootDir}}"}

State = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """Result of a check. State `missing` prevents a run; `remedy` is "" if none is needed."""

    state: State
    text: str
    remedy: str = ""


class _Place(NamedTuple):
    """A folder that a run writes to, or will create."""

    folder: Path
    contents: str
    needed_bytes: int = _IMAGES_BYTES[0]
    enough_bytes: int = _IMAGES_BYTES[1]


Check = Callable[[BenchmarkConfig], Finding]


def examine(config: BenchmarkConfig, seconds: float = CHECK_SECONDS) -> list[tuple[str, Finding]]:
    """Run the checks for a config in parallel, and return (name, finding) for each.

    Args:
        config: The config to run.
        seconds: Deadline of a check; a check that takes longer is abandoned with a warning.
    """
    from nodesweep.launch.registry import backend_of

    checks: dict[str, Check] = {
        "Python": check_python,
        "folders": check_folders,
        "disk": check_disk,
        "Prefect": check_prefect,
    }
    if config.platform.autostart:
        checks |= {"local platform": check_packages, "control groups": check_control_groups}
        checks |= {"containers": check_containers, "Java": check_java}
    if config.platform.endpoint_url is not None:
        checks |= {"port": check_port}
    elif not backend_of(config.platform).is_aws:
        checks |= {"cluster": check_cluster}
    else:
        checks |= {"credentials": check_credentials, "quotas": check_quotas}
    found: dict[str, Finding] = {}

    def run(name: str, check: Check) -> None:
        try:
            finding = check(config)
        except Exception as error:
            finding = Finding("warning", f"could not be checked: {error}")
        found[name] = finding

    threads = [
        threading.Thread(target=run, args=one, name=f"doctor-{one[0]}", daemon=True)
        for one in checks.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    words = f"no response within {seconds:g} s"
    late = Finding("warning", words, "try again, or continue without it")
    return [(name, found.get(name, late)) for name in checks]


def check_python(config: BenchmarkConfig) -> Finding:
    """Check the Python version."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == (3, 11):
        return Finding("ok", version)
    return Finding("missing", f"{version}; 3.11 is required", "install nodesweep with Python 3.11")


def check_folders(config: BenchmarkConfig) -> Finding:
    """Check that all input folders exist and all output folders are writable."""
    from nodesweep.configs.load import ConfigError, check_directories

    try:
        check_directories(config)
    except ConfigError as error:
        return Finding("missing", str(error), "fix the config")
    for field, name in (
        ("report.directory", config.report.directory),
        ("platform.state_directory", config.platform.state_directory),
    ):
        folder = _nearest(Path(name))
        if not os.access(folder, os.W_OK | os.X_OK):
            remedy = f"make it writable, or set {field} to a writable folder"
            return Finding("missing", f"{folder} is not writable", remedy)
    return Finding("ok", f"reports go to {config.report.directory}")


def check_disk(config: BenchmarkConfig) -> Finding:
    """Check the free disk space in every folder that a run writes to."""
    state: State = "ok"
    texts, remedies = [], []
    for place in _written_places(config):
        folder = _nearest(place.folder).resolve()
        free = shutil.disk_usage(folder).free
        texts.append(f"{free / 2**30:.1f} GiB free at {folder} ({place.contents})")
        if free >= place.enough_bytes:
            continue
        state = "missing" if free < place.needed_bytes or state == "missing" else "warning"
        enough = f"{place.enough_bytes / 2**30:.0f} GiB"
        remedies.append(f"free some space at {folder}: {place.contents} take up to {enough}")
    return Finding(state, "; ".join(texts), "; ".join(remedies))


def _written_places(config: BenchmarkConfig) -> list[_Place]:
    platform = config.platform
    places: list[_Place] = []
    if platform.autostart:
        places.append(_Place(Path(platform.state_directory), "images and jobs"))
    if platform.shared_folder is not None:
        places.append(_Place(Path(platform.shared_folder), "code and results", *_FILES_BYTES))
    is_builder = config.image.builder == "docker"
    if is_builder or (platform.autostart and os.geteuid() == 0):
        storage = _container_storage(("docker", "podman") if is_builder else ("podman", "docker"))
        places += [_Place(storage, "containers")] if storage is not None else []
    return [
        *places,
        _Place(Path(config.report.directory), "reports and logs", *_FILES_BYTES),
        _Place(cache_folder(), "caches", *_FILES_BYTES),
        _Place(Path(tempfile.gettempdir()), "temporary files", *_FILES_BYTES),
    ]


def _container_storage(programs: tuple[str, ...]) -> Path | None:
    """Return the image folder of the first container program that responds; None if none does."""
    for name in programs:
        if program := shutil.which(name):
            with suppress(OSError, subprocess.SubprocessError):
                command = [program, "info", "--format", _STORAGE_FORMATS[name]]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_CALL_SECONDS, check=True
                )
                if (folder := Path(done.stdout.strip())).is_absolute():
                    return folder
    return None


def check_prefect(config: BenchmarkConfig) -> Finding:
    """Check the configured Prefect server, or the home folder of one that a run would start.

    The check runs in a separate process, because importing Prefect takes 2 s, and ten times that on
    a busy machine.
    """
    command = [sys.executable, "-P", "-m", "nodesweep.cli.commands.prefect_check"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PREFECT_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        remedy = "try again, or set PREFECT_API_URL to a running server"
        return Finding("warning", f"no response within {_PREFECT_SECONDS:g} s", remedy)
    return Finding(*json.loads(done.stdout))


def check_packages(config: BenchmarkConfig) -> Finding:
    """Check that the emulator is installed."""
    if find_spec("sagemaker_emulator") is None:
        return Finding("missing", "missing package: sagemaker-emulator", EMULATOR_REMEDY)
    return Finding("ok", "all required packages are installed")


def check_control_groups(config: BenchmarkConfig) -> Finding:
    """Check that control groups can limit the CPU of emulated nodes."""
    done = _ask([sys.executable, "-P", "-m", "sagemaker_emulator.engine.host.scope"])
    output = done.stdout.strip() or "could not be checked"
    if done.returncode == 0:
        return Finding("ok", output)
    remedy = (
        "none needed: a duty cycle limits the nodes' CPU instead; running as root may enable quotas"
    )
    return Finding("warning", output, remedy)


def check_containers(config: BenchmarkConfig) -> Finding:
    """Check that a container program is installed, without running a container."""
    for name in ("podman", "docker"):
        if program := shutil.which(name):
            if os.geteuid() != 0:
                return Finding(
                    "warning",
                    f"{program} is installed, but nodes in containers need root",
                    "none needed: nodes run as processes",
                )
            return Finding("ok", f"{program}; tested when the platform starts")
    return Finding(
        "warning", "neither podman nor docker is installed", "none needed: nodes run as processes"
    )


def check_java(config: BenchmarkConfig) -> Finding:
    """Check for Java, which only Spark validation on emulated nodes needs."""
    validation = config.dataset.validation if config.dataset is not None else None
    wants_spark = validation is not None and validation.engine == "spark"
    found = _java()
    if found.state == "ok" or wants_spark:
        return found
    text = f"{found.text}; only dataset.validation.engine: spark needs it"
    return Finding("ok", text, f"none needed; to use Spark: {_INSTALL_JAVA}")


def _java() -> Finding:
    """Check the version of the Java program that a Spark job would find."""
    program = shutil.which("java")
    if program is None:
        return Finding("warning", "Java is not installed", _INSTALL_JAVA)
    done = _ask([program, "-version"])
    version = re.search(r'version "(\d+)[^"]*"', done.stderr or done.stdout)
    if done.returncode != 0 or version is None:
        return Finding("warning", f"{program} does not report its version", _INSTALL_JAVA)
    if int(version[1]) < _LEAST_JAVA:
        text = f"{program} has {version[0]}; Spark needs {_LEAST_JAVA} or newer"
        return Finding("warning", text, _INSTALL_JAVA)
    return Finding("ok", f"{program}, {version[0]}")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that ends at once, or after seconds on a busy machine; later, it has failed."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_PROGRAM_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "")


def check_port(config: BenchmarkConfig) -> Finding:
    """Check which process responds at the config's local endpoint."""
    platform = config.platform
    endpoint = platform.endpoint_url or ""
    if platform.autostart:
        endpoint = served_endpoint(platform.state_directory) or endpoint
    try:
        is_up = bool(
            own_status(endpoint, read_key(platform.state_directory), _ANSWER_SECONDS).get("running")
        )
    except TimeoutError:
        return Finding(
            "warning",
            f"{endpoint} does not respond",
            ("wait, or stop the process that listens there"),
        )
    except (OSError, KeyUnreadable, NotLocalPlatform):
        is_up = False
    if is_up:
        return Finding("ok", f"the platform of {platform.state_directory} is running at {endpoint}")
    return _port_finding(config)


def _port_finding(config: BenchmarkConfig) -> Finding:
    endpoint, autostart = config.platform.endpoint_url or "", config.platform.autostart
    try:
        whose = f"the platform of {read_status(endpoint, _ANSWER_SECONDS)['state_dir']}"
    except NotLocalPlatform:
        whose = "another program"
    except OSError as error:
        if autostart:
            return Finding("ok", f"{endpoint} is free")
        return Finding("missing", f"nothing responds at {endpoint}: {error}", "start the platform")
    if autostart:
        return Finding("ok", f"{endpoint} is taken by {whose}; a run uses a free port instead")
    return Finding("warning", f"{endpoint} is taken by {whose}", "check platform.endpoint_url")


def check_cluster(config: BenchmarkConfig) -> Finding:
    """Check the platform with the rules of a run's preflight."""
    from nodesweep.launch.registry import backend_of
    from nodesweep.tasks.preflight.facts import read_facts

    found = backend_of(config.platform).check_account(read_facts(config))
    if found.problems:
        return Finding("missing", "; ".join(found.problems), "correct the config")
    return Finding("ok", "; ".join(found.notices) or "the cluster responds and can run the sweep")


def check_credentials(config: BenchmarkConfig) -> Finding:
    """Check the AWS credentials; only the last digits of the account id are shown."""
    from botocore.exceptions import BotoCoreError, ClientError

    from nodesweep.aws.platform import aws_client

    region = config.platform.region
    try:
        caller = aws_client("sts", config.platform, quick=True).get_caller_identity()
    except (BotoCoreError, ClientError) as error:
        remedy = "run aws configure or aws sso login, or export AWS_PROFILE (docs/aws.md)"
        return Finding("missing", f"region {region}: {error}", remedy)
    name = caller["Arn"].rpartition(":")[2]
    return Finding("ok", f"{name}, account …{caller['Account'][-4:]}, region {region}")


def check_quotas(config: BenchmarkConfig) -> Finding:
    """Check quotas with the same Service Quotas calls and rule as a run's preflight."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    from nodesweep.aws.platform import aws_client
    from nodesweep.launch.sagemaker.preflight.quota import judge_quotas, query_quotas
    from nodesweep.launch.sagemaker.preflight.rule import RuleContext
    from nodesweep.scaling.formats import join_words
    from nodesweep.scaling.rules.rule import combine
    from nodesweep.tasks.preflight.facts import read_facts

    facts = read_facts(config)

    def client(service: str) -> Any:
        return aws_client(service, config.platform, quick=True)

    try:
        findings = combine(
            judge_quotas(
                arm.training,
                query_quotas(RuleContext(arm, client)),
                arm.config.sweep.max_parallel_jobs,
                arm.peak_nodes,
                arm.max_nodes,
                arm.peak_nodes_together,
                arm.kept_nodes,
            )
            for arm in facts.each
        )
    except NoCredentialsError:
        return Finding("warning", "not checked without credentials")
    except (BotoCoreError, ClientError) as error:
        remedy = "allow servicequotas:ListServiceQuotas, or look the quota up in the console"
        return Finding("warning", f"unknown: {error}", remedy)
    if findings.problems:
        return Finding("missing", "; ".join(findings.problems))
    if findings.notices:
        return Finding("warning", "; ".join(findings.notices))
    enough = [f"{arm.peak_nodes} x {arm.training.instance_type}" for arm in facts.each]
    return Finding("ok", f"enough for {join_words(dict.fromkeys(enough))} at once")


def _nearest(path: Path) -> Path:
    """Return the path if it exists, otherwise the nearest existing folder above it."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def show_findings(found: list[tuple[str, Finding]]) -> None:
    """Print one row per check, with its remedy below."""
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "warning": "yellow", "missing": "red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("state", "name"):
        table.add_column(column, no_wrap=True)
    table.add_column("text", overflow="fold")
    for name, finding in found:
        state = Text(finding.state, style=colours[finding.state])
        table.add_row(state, Text(name), Text(finding.text))
        if finding.remedy:
            table.add_row("", "", Text(f"to do: {finding.remedy}"))
    print_rendered(table, whole=True)


def doctor(config: Path | None) -> None:
    """Run and print all checks; exit with code 3 if a requirement is missing."""
    benchmark = read_config(config or Path("local"))
    found = examine(benchmark)
    show_findings(found)
    missing = [name for name, finding in found if finding.state == "missing"]
    named = config or "the shipped config `local`"
    if missing:
        print_text(f"a run of {named} can't start: {', '.join(missing)}")
        sys.exit(PREFLIGHT_REFUSED)
    print_text(f"a run of {named} can start")
