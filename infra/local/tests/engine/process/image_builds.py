"""Builds of small images, and the tiny packages that they install."""

from __future__ import annotations

import hashlib
import threading
import zipfile

from infra.local.tests.engine.engine_bench import HANG_SECONDS

WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build(
    store,
    context,
    tag="1",
    repository="tiny",
    seconds=HANG_SECONDS,
    on_line=None,
    stop=None,
    **build_args,
):
    """Build a context with the store."""
    return store.build(
        context,
        repository,
        tag,
        build_args,
        on_line or (lambda line: None),
        stop or threading.Event(),
        seconds,
    )


def hash_of(path):
    """Return the `--hash` option for a file in requirements.txt."""
    return f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def write_wheel(folder, name, version, requires=""):
    """Write a wheel with one module and return its path."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = '{version}'\n")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        )
        wheel.writestr(f"{info}/WHEEL", WHEEL)
        wheel.writestr(f"{info}/RECORD", "")
    return path
