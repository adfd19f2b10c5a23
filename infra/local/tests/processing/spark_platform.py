"""A platform whose store has the Spark image."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import client
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerConfig

REPOSITORY = Path(__file__).resolve().parents[4]
CONTEXT = REPOSITORY / "infra" / "image_spark"
STORE = REPOSITORY / ".nodesweep" / "tests"
REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"
needs_java = pytest.mark.skipif(
    shutil.which("java") is None,
    reason="Spark needs Java (Debian: apt-get install openjdk-17-jre-headless)",
)


def build_spark_image(store: Path = STORE) -> str:
    """Build the image and return its URI. The tag is a content hash, since the store is cached."""
    endings = ("", ".py", ".toml", ".txt")
    files = sorted(path for path in CONTEXT.rglob("*") if path.is_file() and path.suffix in endings)
    tag = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    arguments = {"REQUIREMENTS": "requirements-emulated.txt"}
    ProcessImageStore(store).build(CONTEXT, "spark", tag, arguments, print, threading.Event(), 900)
    return f"{REGISTRY}/spark:{tag}"


@contextmanager
def spark_platform(state_dir: Path) -> Iterator[SimpleNamespace]:
    """Yield a platform with the process engine and a shared image store, in a separate process."""
    image_uri = build_spark_image()
    if problem := Containment.find(state_dir).opt_ml_problem:
        pytest.skip(f"no /opt/ml of a node's own on this machine: {problem}")
    for name in ("images", "venvs"):
        (state_dir / name).symlink_to(STORE / name)
    endpoint = daemon.start(ServerConfig(0, state_dir, owner_pid=os.getpid()))
    clients = {name: client(endpoint, name) for name in ("sagemaker", "s3", "logs")}
    try:
        yield SimpleNamespace(image_uri=image_uri, **clients)
    finally:
        daemon.stop(state_dir)
