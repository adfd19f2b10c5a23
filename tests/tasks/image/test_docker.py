"""The builder on the machine's container engine, which a program that records its calls
replaces."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import nodesweep.tasks.image.process
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import ImageConfig, PlatformConfig
from nodesweep.errors import ImageBuildFailed, PreflightRefused
from nodesweep.launch.registry import backend_of
from nodesweep.polling import Cancelled, Clock
from nodesweep.tasks.image.docker import DockerBuilder, find_engine
from nodesweep.tasks.image.find import Images, read_context
from sagemaker_emulator.process_identity import start_ticks
from tests.plain import plain
from tests.tasks.image.image_fakes import make_context, make_repository, push

# Appends {action, argv, stdin, files of the private folder} to $RECORD; then does what behaviour.py
# beside it says. Without site-packages, it starts in a tenth of the time.
ENGINE = (
    f"#!{sys.executable} -uIS\n"
    + """
import json, os, pathlib, sys
action = sys.argv[1]
folder = pathlib.Path(__file__).parent
said = sys.stdin.read() if "--password-stdin" in sys.argv else None
private = pathlib.Path(os.environ["DOCKER_CONFIG"]) if action != "info" else folder
before = (private / "config.json").read_text() if action != "info" else ""
if said:
    (private / "config.json").write_text(json.dumps({"auths": {"x": said}}))
own = ("AWS_", "REGISTRY_", "BUILD")
call = {
    "action": action,
    "argv": sys.argv[1:],
    "stdin": said,
    "private": str(private),
    "mode": private.stat().st_mode,
    "environment": {key: value for key, value in os.environ.items() if key.startswith(own)},
}
if action == "build":
    root = pathlib.Path(sys.argv[-1])
    files = [path for path in root.rglob("*") if path.is_file()]
    call["files"] = {str(path.relative_to(root)): path.stat().st_mode & 0o777 for path in files}
with (folder / "calls.jsonl").open("a") as file:
    file.write(json.dumps(call) + "\\n")
exec((folder / "behaviour.py").read_text())
"""
)
PASSWORD = "123456789012-auth-token"  # moto's


@dataclass
class Engine:
    """The folder of the replacement: its recorded calls, and its behavior."""

    folder: Path

    def behave(self, code: str) -> None:
        (self.folder / "behaviour.py").write_text(code)

    def calls(self, action: str | None = None) -> list[dict[str, Any]]:
        file = self.folder / "calls.jsonl"
        found = (
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        )
        return [call for call in found if action in (None, call["action"])]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(ENGINE)
    (folder / "docker").chmod(0o755)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    made = Engine(folder)
    made.behave("print('done')")
    return made


@pytest.fixture
def config(tmp_path: Path) -> ImageConfig:
    return make_context(tmp_path).model_copy(update={"builder": "docker"})


@pytest.fixture
def repository(aws: Callable[[str], Any]) -> str:
    return make_repository(aws("ecr"))


def build(
    platform: PlatformConfig, config: ImageConfig, repository: str, clock: Clock | None = None
) -> Any:
    builder, context = DockerBuilder(Images(backend_of(platform), config)), read_context(config)
    started = builder.start(context, repository, "token")
    return builder.finish(
        context, repository, started, clock or Clock(wait=lambda seconds: bool(time.sleep(0.01)))
    )


def late_clock(marker: Path, then: Callable[[], bool]) -> Clock:
    """Return a clock that is real until `marker` exists; then an hour has passed, and every wait
    ends with `then`."""

    def wait(seconds: float) -> bool:
        time.sleep(0.01)
        return then() if marker.exists() else False

    return Clock(monotonic=lambda: time.monotonic() + (3600 if marker.exists() else 0), wait=wait)


def test_image_is_built_pushed_and_used_by_the_digest_in_ecr(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
) -> None:
    config = config.model_copy(update={"build_args": {"B": "two", "A": "1"}})
    digest = push(aws("ecr"), read_context(config).tag)  # what the push leaves behind
    engine.behave(f"print('ctx: digest: {digest} size: 12') if action == 'push' else None")
    image = build(platform, config, repository)
    assert (image.uri, image.built) == (f"{repository}@{digest}", True)
    name = f"{repository}:{read_context(config).tag}"
    assert [call["action"] for call in engine.calls()] == ["info", "login", "build", "push"]
    argv = engine.calls("build")[0]["argv"]
    assert f"--tag={name}" in argv and "--platform=linux/amd64" in argv
    assert [word for word in argv if word.startswith("--build-arg")] == [
        "--build-arg=A",
        "--build-arg=B",
    ]
    assert f"--file={argv[-1]}/Dockerfile" in argv
    assert engine.calls("push")[0]["argv"] == ["push", name]


READ_BY_THE_ENGINE = {
    "PATH": "/nowhere",
    "DOCKER_HOST": "tcp://192.0.2.1:1",
    "DOCKER_CONFIG": "/nowhere",
    "REGISTRY_AUTH_FILE": "/nowhere",
    "BUILDKIT_HOST": "tcp://192.0.2.1:1",
    "CONTAINER_HOST": "tcp://192.0.2.1:1",
    "HTTP_PROXY": "http://192.0.2.1:1",
    "https_proxy": "http://192.0.2.1:1",
    "LD_PRELOAD": "/nowhere.so",
    "HOME": "/nowhere",
    "XDG_RUNTIME_DIR": "/nowhere",
    "GODEBUG": "netdns=go",
}
SECRETS = {
    "HF_TOKEN": "a token",
    "AWS_SECRET_ACCESS_KEY": "a key",
    "SSH_PRIVATE_KEY": "first\nsecond line",
    "NPM_CONFIG": "",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTPS_PROXY", "http://user:pa55word@proxy.example:3128"), ("DOCKER_PASSWORD", "hunter2")],
)
def test_secret_that_the_engine_reads_itself_is_taken_from_the_environment_or_refused(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    context = read_context(config.model_copy(update={"build_args": {name: value}}))
    builder = DockerBuilder(Images(backend_of(platform), config))
    monkeypatch.setenv(name, "another value")
    with pytest.raises(PreflightRefused, match=name) as refused:
        builder.start(context, repository, "")
    assert value not in str(refused.value) and engine.calls() == []
    monkeypatch.setenv(name, value)
    assert builder.start(context, repository, "") == str(engine.folder / "docker")


def test_no_other_user_reads_a_build_argument_in_the_list_of_processes(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel shows the processes of all steps to every user.

    A variable that would change the engine is not added to its environment, unless the environment
    already has it.
    """
    monkeypatch.setenv("NO_PROXY", "password-of-the-proxy")
    monkeypatch.setenv("HF_TOKEN", "another one")
    own = {name: os.environ.get(name) for name in READ_BY_THE_ENGINE}
    arguments = {**SECRETS, **READ_BY_THE_ENGINE, "NO_PROXY": "password-of-the-proxy"}
    config = config.model_copy(update={"build_args": arguments})
    push(aws("ecr"), read_context(config).tag)
    engine.behave("""
seen = pathlib.Path(f"/proc/{os.getpid()}/cmdline").read_text().split(chr(0))
(folder / f"{action}.json").write_text(json.dumps([seen, dict(os.environ)]))
""")
    build(platform, config, repository)
    for step in ("login", "push"):
        words, environment = json.loads((engine.folder / f"{step}.json").read_text())
        assert not any(word.startswith("--build-arg") for word in words)
        assert environment["HF_TOKEN"] == "another one" and "SSH_PRIVATE_KEY" not in environment
    words, environment = json.loads((engine.folder / "build.json").read_text())
    sent = [word.removeprefix("--build-arg=") for word in words if word.startswith("--build-arg")]
    by_value = {name: value for name, is_shown, value in (w.partition("=") for w in sent)}
    assert {name: by_value[name] or environment[name] for name in by_value} == arguments
    assert {name for name, value in by_value.items() if value} == set(READ_BY_THE_ENGINE)
    assert all(environment[name] == value for name, value in SECRETS.items())
    private = {"DOCKER_CONFIG", "REGISTRY_AUTH_FILE"}
    assert {n: environment.get(n) for n in own if n not in private} == {
        name: value for name, value in own.items() if name not in private
    }
    assert not private & {name for name in private if environment[name] == "/nowhere"}


def test_engine_sees_the_files_of_the_tag_with_modes_of_their_own(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
) -> None:
    root = Path(config.context)
    (root / "start.sh").write_text("#!/bin/sh\n")
    (root / "train.py").chmod(0o777)
    push(aws("ecr"), read_context(config).tag)
    build(platform, config, repository)
    files = engine.calls("build")[0]["files"]
    assert files == {
        ".dockerignore": 0o644,
        "Dockerfile": 0o644,
        "start.sh": 0o755,
        "train.py": 0o644,
    }


def test_password_goes_to_standard_input_and_nowhere_else(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    caplog.set_level(logging.DEBUG, logger="nodesweep")
    push(aws("ecr"), read_context(config).tag)
    engine.behave("print('the password is', said)")
    build(platform, config, repository)
    calls = engine.calls()
    registry = repository.partition("/")[0]
    assert engine.calls("login")[0]["argv"] == [
        "login",
        "--username=AWS",
        "--password-stdin",
        registry,
    ]
    assert [call["stdin"] for call in calls] == [None, PASSWORD, None, None]
    assert not any(PASSWORD in word for call in calls for word in call["argv"])
    assert caplog.messages == snapshot
    assert PASSWORD not in caplog.text
    private = calls[1]["private"]
    assert {call["private"] for call in calls[1:]} == {private}
    assert stat.S_IMODE(calls[1]["mode"]) == 0o700
    assert not Path(private).exists()
    assert not (Path(os.environ["DOCKER_CONFIG"])).exists()
    assert set(calls[2]["environment"]) == {
        "BUILDX_NO_DEFAULT_ATTESTATIONS",
        "BUILDAH_FORMAT",
        "REGISTRY_AUTH_FILE",
    }


def test_failed_login_tells_no_password_and_leaves_nothing(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    engine.behave("print('bad', said); sys.exit(1 if action == 'login' else 0)")
    with pytest.raises(ImageBuildFailed) as error:
        build(platform, config, repository)
    assert str(error.value) == snapshot
    assert PASSWORD not in str(error.value)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert engine.calls("build") == []


def test_login_that_does_not_read_its_password_is_a_failed_login(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    snapshot: SnapshotAssertion,
) -> None:
    (engine.folder / "docker").write_text(
        "#!/bin/sh\ntest $1 = info || { exec <&-; echo no; exit 3; }\n"
    )
    with pytest.raises(ImageBuildFailed) as refused:
        build(platform, config, repository)
    assert str(refused.value) == snapshot


def test_registry_of_a_base_in_ecr_is_logged_in_to(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
) -> None:
    base = "763104351884.dkr.ecr.eu-west-1.amazonaws.com"
    (Path(config.context) / "Dockerfile").write_text(
        f"FROM {base}/pytorch-training:2.5 AS a\nFROM python:3.11\n"
    )
    push(aws("ecr"), read_context(config).tag)
    build(platform, config, repository)
    assert [call["argv"][-1] for call in engine.calls("login")] == [
        repository.partition("/")[0],
        base,
    ]


@pytest.mark.parametrize(
    "instruction",
    ["#7 [2/3] RUN pip install x", "Step 2/3 : RUN pip install x", "STEP 2/3: RUN pip install x"],
)
def test_failed_build_names_its_instruction_and_last_lines(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    instruction: str,
    snapshot: SnapshotAssertion,
) -> None:
    engine.behave(f"""
if action == "build":
    for n in range(50): print("line", n)
    print({instruction!r})
    print("ERROR: no such package x", file=sys.stderr)
    sys.exit(7)
""")
    with pytest.raises(ImageBuildFailed) as error:
        build(platform, config, repository)
    text = str(error.value)
    assert text == snapshot
    # the last 20 lines: 18 of these and two more
    assert engine.calls("push") == []


def test_half_pushed_image_is_not_used(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    snapshot: SnapshotAssertion,
) -> None:
    engine.behave("print('layer 1 pushed'); sys.exit(1 if action == 'push' else 0)")
    with pytest.raises(ImageBuildFailed) as refused:
        build(platform, config, repository)
    assert str(refused.value) == snapshot


def test_push_that_somebody_else_was_faster_with_is_forgiven(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
) -> None:
    digest = push(aws("ecr"), read_context(config).tag)
    engine.behave("print('tag invalid: already exists'); sys.exit(1 if action == 'push' else 0)")
    image = build(platform, config, repository)
    assert (image.uri, image.built) == (f"{repository}@{digest}", False)


def test_push_of_another_image_than_ecr_has_fails(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    snapshot: SnapshotAssertion,
) -> None:
    push(aws("ecr"), read_context(config).tag)
    engine.behave(f"print('x: digest: sha256:{'b' * 64} size: 1')")
    with pytest.raises(ImageBuildFailed) as refused:
        build(platform, config, repository)
    assert str(refused.value) == snapshot


def note_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the file `seen` once the builder has read the line of the first step."""
    read = nodesweep.tasks.image.process._read

    def noting(process: Any, arrived: Any) -> None:
        def put(line: str) -> None:
            arrived.put(line)
            if line.startswith("STEP 1/2"):
                (engine.folder / "seen").touch()

        noted: Any = SimpleNamespace(put=put)
        read(process, noted)

    monkeypatch.setattr(nodesweep.tasks.image.process, "_read", noting)


HANGS = """
import subprocess, time
if action == "build":
    print("STEP 1/2: RUN sleep", flush=True)
    child = subprocess.Popen(["sleep", "600"])
    while not (folder / "seen").exists(): time.sleep(0.01)
    (folder / "pids.tmp").write_text(f"{os.getpid()} {child.pid}")
    (folder / "pids.tmp").rename(folder / "pids")
    time.sleep(600)
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_hanging_build_meets_its_deadline_and_is_ended_with_its_children(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deaf: bool,
) -> None:
    monkeypatch.setattr("nodesweep.tasks.image.process._END_SECONDS", 0.2)
    note_step(engine, monkeypatch)
    engine.behave(
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else "") + HANGS
    )
    clock = late_clock(engine.folder / "pids", lambda: False)
    message = r"was stopped after \d+ s in build, STEP 1/2: RUN sleep\n    STEP 1/2"
    with pytest.raises(ImageBuildFailed, match=message):
        build(platform, config, repository, clock)
    for pid in (engine.folder / "pids").read_text().split():
        wait_until(lambda pid=pid: start_ticks(int(pid)) is None)
    assert engine.calls("push") == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_cancelled_build_is_ended(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note_step(engine, monkeypatch)
    engine.behave(HANGS)
    pids = engine.folder / "pids"
    cancelled = Clock(wait=lambda seconds: late_clock(pids, lambda: True).wait(seconds))
    with pytest.raises(Cancelled):
        build(platform, config, repository, cancelled)
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: start_ticks(int(pid)) is None)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_own_settings_stay_in_force_and_credential_helpers_do_not(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    (own / "contexts").mkdir(parents=True)
    (own / "contexts" / "meta.json").write_text("{}")
    settings = {
        "currentContext": "remote",
        "credsStore": "desktop",
        "credHelpers": {"x": "ecr-login"},
    }
    (own / "config.json").write_text(json.dumps(settings))
    push(aws("ecr"), read_context(config).tag)
    engine.behave("""
if action == "login":
    (folder / "seen").write_text(" ".join(sorted(path.name for path in private.iterdir())))
    (folder / "settings").write_text(before)
""")
    build(platform, config, repository)
    assert (engine.folder / "seen").read_text() == "config.json contexts"
    assert json.loads((engine.folder / "settings").read_text()) == {"currentContext": "remote"}
    assert json.loads((own / "config.json").read_text()) == settings
    assert (own / "contexts" / "meta.json").exists()


def only(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_engine_that_has_gone_is_a_failed_build(
    engine: Engine,
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(ImageBuildFailed) as refused:
        DockerBuilder(Images(backend_of(platform), config)).finish(
            read_context(config), repository, "/nowhere/docker", Clock()
        )
    assert str(refused.value) == snapshot


def test_first_engine_that_answers_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tmp_path / "a", monkeypatch, docker="exit 0", podman="exit 0")
    assert find_engine() == str(tmp_path / "a" / "docker")
    only(
        tmp_path / "b",
        monkeypatch,
        docker="echo is the docker daemon running? >&2; exit 1",
        podman="exit 0",
    )
    assert find_engine() == str(tmp_path / "b" / "podman")


def test_machine_without_an_engine_is_refused_with_what_each_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    only(tmp_path / "a", monkeypatch, docker="echo is the docker daemon running? >&2; exit 1")
    with pytest.raises(PreflightRefused) as refused:
        find_engine()
    assert plain(refused.value, folder=tmp_path) == snapshot
    only(tmp_path / "b", monkeypatch, docker="exec /bin/sleep 600", podman="exit 4")
    run = subprocess.run

    def run_briefly(command: list[str], **options: Any) -> Any:
        """Wait for docker a moment only, and for podman as long as it takes."""
        seconds = options["timeout"] if command[0].endswith("/docker") else HANG_SECONDS
        return run(command, **{**options, "timeout": seconds})

    monkeypatch.setattr("nodesweep.tasks.image.docker._ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("nodesweep.tasks.image.docker.subprocess.run", run_briefly)
    with pytest.raises(PreflightRefused) as refused:
        find_engine()
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_podman_is_told_of_plain_http_on_loopback_and_asked_for_the_digest(
    engine: Engine,
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    config: ImageConfig,
    repository: str,
) -> None:
    (engine.folder / "docker").rename(engine.folder / "podman")
    digest = push(aws("ecr"), read_context(config).tag)
    engine.behave(f"""
for word in sys.argv:
    if word.startswith("--digestfile="):
        pathlib.Path(word.partition("=")[2]).write_text("{digest}\\n")
""")
    context = read_context(config)
    builder = DockerBuilder(Images(backend_of(platform), config))
    image = builder.finish(
        context, "127.0.0.1:5000/nodesweep", str(engine.folder / "podman"), Clock()
    )
    assert image.uri == f"127.0.0.1:5000/nodesweep@{digest}"
    assert all(call["argv"][1] == "--tls-verify=false" for call in engine.calls())
    builder.finish(context, repository, str(engine.folder / "podman"), Clock())
    assert not any("--tls-verify=false" in call["argv"] for call in engine.calls()[3:])
