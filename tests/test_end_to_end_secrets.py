"""Secrets in every input of a real run, printed by its jobs in every form, are only where
docs/security.md says so."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks.ports import free_port
from nodesweep.aws.local_keys import local_session
from nodesweep.configs.section import HIDDEN
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from tests.planted import PASSWORD, PLANTED, SECRETS, found_in, unpacked
from tests.processes.prefect_home import with_tables

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = """
import base64, json, os, sys, urllib.parse
from pathlib import Path

given = [*os.environ["SECRETS_OF_THE_JOB"].split("|"), *sys.argv[1:]]
print("a file that was not meant to be sent:", Path(__file__).with_name(".env").exists())
for s in given:
    b = s.encode()
    forms = [
        s, f"'{s}'", json.dumps(s), json.dumps([s]), json.dumps(json.dumps({"x": s})), repr([s]),
        repr({"x": s}), f"x{s}y", urllib.parse.quote(s), urllib.parse.quote(s, safe=""),
        base64.b64encode(b).decode(), base64.urlsafe_b64encode(b).decode().rstrip("="),
        f"--api-key {s}", f"api_key={s}", f"export TOKEN={s}", f"Authorization: Bearer {s}",
        f"https://me:{s}@host/x", f"https://host/x?token={urllib.parse.quote(s, safe='')}",
        f"<token>{s}</token>", f"\\x1b[31m{s}\\x1b[0m", f"a\\t{s}\\tb", f"{s}\\r",
        "." * 5000 + s + "." * 5000, f"retry with {s}" * 3, repr(b), json.dumps({"log": [s]}),
        urllib.parse.quote_plus(s), json.dumps(s, ensure_ascii=False),
    ]
    for number, form in enumerate(forms):
        print(f"form {number}: {form}", file=sys.stderr if number % 2 else sys.stdout, flush=True)
if int(os.environ["SM_HOSTS"].count("algo")) == 2:
    raise ValueError("failed with " + " ".join(given))
print("train_seconds=1.0;")
"""


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, image_store: ProcessImageStore
) -> Iterator[SimpleNamespace]:
    """A folder for runs, a platform, and a separate Prefect home."""
    folder = tmp_path_factory.mktemp("planted")
    state = folder / "state"
    state.mkdir()
    with_tables(folder / "prefect")
    (state / "venvs").symlink_to(REPOSITORY / ".nodesweep" / "tests" / "venvs")
    port = str(free_port())
    arguments = ["--port", port, "--state-dir", str(state)]
    _call(sys.executable, "-m", "sagemaker_emulator", "start", *arguments, seconds=120)
    try:
        yield SimpleNamespace(folder=folder, state=state, endpoint=f"http://127.0.0.1:{port}")
    finally:
        _call(sys.executable, "-m", "sagemaker_emulator", "stop", *arguments, seconds=200)


def _call(*command: str, seconds: float) -> None:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr


def write_inputs(site: SimpleNamespace) -> Path:
    """Write the config, its code and its build context."""
    inputs = site.folder / "inputs"
    code, context = inputs / "code", inputs / "image"
    code.mkdir(parents=True)
    (code / "leak.py").write_text(PROGRAM)
    (code / ".env").write_text(f"NOTE={PLANTED['file']}\n")
    shutil.copytree(
        REPOSITORY / "infra/image", context, ignore=shutil.ignore_patterns("__pycache__", ".*cache")
    )
    (context / ".env").write_text(f"NOTE={PLANTED['file']}\n")
    with (context / "Dockerfile").open("a") as file:
        file.write("ARG INDEX_TOKEN\n")
    raw = yaml.safe_load((REPOSITORY / "configs/own_script.yaml").read_text())
    raw |= {"name": "planted", "dataset": "none"}
    raw["image"] = {
        "context": str(context),
        "build_args": {"INDEX_TOKEN": PLANTED["build argument"]},
    }
    raw["training"] |= {
        "entry_point": "leak.py",
        "source_dir": str(code),
        "distribution": {"kind": "none"},
        "hyperparameters": {
            "api_key": PLANTED["hyperparameter"],
            "tracking": f"https://me:{PLANTED['url']}@tracking.example/x",
        },
        "environment": {
            "NOTE": PLANTED["environment"],
            "DB_PASSWORD": PASSWORD,
            "HF_TOKEN": "${PLANTED_VARIABLE}",
            "SECRETS_OF_THE_JOB": "|".join(
                SECRETS[place] for place in ("environment", "variable", "password")
            ),
        },
    }
    for section in ("batch", "learning_rate"):
        raw["training"].pop(section, None)
    raw["sweep"] = {
        "node_counts": [1, 2], "repeats": 1, "order": "ascending", "poll_interval_seconds": 0.5,
    }  # fmt: skip
    raw["platform"] |= {
        "endpoint_url": site.endpoint, "state_directory": str(site.state), "autostart": False,
    }  # fmt: skip
    path = inputs / "config.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def nodesweep(site: SimpleNamespace, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.run(
        [sys.executable, "-m", "nodesweep", *arguments],
        cwd=site.folder,
        env=own
        | {
            "PYTHONPATH": str(REPOSITORY),
            "PREFECT_HOME": str(site.folder / "prefect"),
            "PLANTED_VARIABLE": PLANTED["variable"],
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield from unpacked(str(path.relative_to(folder.parent)), path.read_bytes())


def database_of(home: Path) -> Iterator[tuple[str, bytes]]:
    """Return every row of Prefect's database, without the hyperparameters in a run's parameters,
    which docs/security.md says are kept."""
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        tables = [row[0] for row in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
        )]  # fmt: skip
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                yield f"Prefect's {table}", json.dumps(list(map(_cell, row))).encode()


def _cell(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if '"preset"' in text:
        parameters = json.loads(text)
        parameters["preset"]["training"].pop("hyperparameters")
        return json.dumps(parameters)
    return text


def bucket_of(site: SimpleNamespace) -> Iterator[tuple[str, bytes]]:
    s3 = local_session(site.endpoint, "us-east-1", site.state).client(
        "s3", endpoint_url=site.endpoint
    )
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="nodesweep-local")
    for key in (item["Key"] for page in pages for item in page.get("Contents", ())):
        body = s3.get_object(Bucket="nodesweep-local", Key=key)["Body"].read()
        yield from unpacked(f"bucket {key}", body)


REACHED = (
    "sweep.json", "report.json", "report.html", "report.md", "points.csv", "/logs/", "run.log",
    "history", ".parquet!rows", "sourcedir.tar.gz!!leak.py", "Prefect's log", "Prefect's artifact",
    "Prefect's flow_run", "Prefect's events", "images/", "server.log", "terminal of report",
)  # fmt: skip
"""Parts of names of outputs, so that one that moved is missed."""


def kept_by_platform(state: Path) -> Iterator[tuple[str, bytes]]:
    """Return image layers, nodes' folders and the server's log.

    The records of jobs and builds are left out, because DescribeTrainingJob and BatchGetBuilds
    return them on AWS, too.
    """
    for part in sorted(state.iterdir()):
        if part.name in ("training_jobs", "builds", "s3") or part.is_symlink():
            continue
        yield from files_below(part) if part.is_dir() else [(part.name, part.read_bytes())]


def test_nothing_that_a_run_leaves_shows_what_was_planted(site: SimpleNamespace) -> None:
    config = write_inputs(site)
    run = nodesweep(site, "run", str(config))
    assert run.returncode == 1, run.stderr  # the job on two nodes fails
    assert "form 3: " in run.stderr or "failed with" in run.stderr, run.stderr
    [sweep] = [path.name for path in (site.folder / "reports").glob("planted-*")]
    terminal = {"run": run.stdout + run.stderr}
    for command in (
        ("plan", str(config)), ("report", sweep), ("logs", sweep), ("history", str(config)),
        ("show", sweep), ("list",),
    ):  # fmt: skip
        done = nodesweep(site, *command)
        terminal[command[0]] = done.stdout + done.stderr
    outputs = [
        *((f"terminal of {name}", text.encode()) for name, text in terminal.items()),
        *files_below(site.folder / "reports"),
        *database_of(site.folder / "prefect"),
        *bucket_of(site),
        *kept_by_platform(site.state),
    ]
    for part in REACHED:
        assert any(part in name and body for name, body in outputs), f"no {part} to look into"
    hidden = {name for name, body in outputs if HIDDEN.encode() in body}
    assert {"terminal of run", "terminal of logs"} <= hidden and len(hidden) > 10
    assert found_in(outputs) == {}
