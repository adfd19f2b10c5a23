"""s3fs and awswrangler, unmodified: the blocks of docs/local-platform.md that use them run
unchanged.

They have a separate environment, since they need another botocore than the other clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import serve_platform
from tests.clients.client_environment import client_python, client_variables, run_client

pytestmark = pytest.mark.slow

GUIDE = (Path(__file__).parents[2] / "docs" / "local-platform.md").read_text()
BLOCKS = re.findall(r"^```py\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
CLIENTS = ("s3fs==2026.9.0", "awswrangler==3.17.1")
SECONDS = 600.0  # for a machine that has much else to do


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[SimpleNamespace]:
    for served in serve_platform(tmp_path / "platform"):
        served.s3.create_bucket(Bucket="own-bucket")
        yield served


def run_block(platform: SimpleNamespace, folder: Path, client: str) -> str:
    """Run the page's only block that imports the client, and return its output."""
    [block] = [text for text in BLOCKS if f"import {client}" in text]
    program = folder / f"use_{client}.py"
    program.write_text(block)
    variables = client_variables(platform.endpoint, platform.state_dir, folder)
    python = client_python(*CLIENTS)
    return run_client(python, program, variables=variables, seconds=SECONDS)


def test_s3fs(platform: SimpleNamespace, tmp_path: Path) -> None:
    said = run_block(platform, tmp_path, "s3fs")
    assert said.splitlines()[-1] == "['own-bucket/notes/moved.txt']"
    stored = platform.s3.get_object(Bucket="own-bucket", Key="notes/moved.txt")
    assert stored["Body"].read() == b"written by s3fs"


def test_awswrangler(platform: SimpleNamespace, tmp_path: Path) -> None:
    said = run_block(platform, tmp_path, "awswrangler")
    assert said.splitlines()[-1] == "[1, 2] ['a', 'b']"
    stored = platform.s3.list_objects_v2(Bucket="own-bucket", Prefix="frame/")["Contents"]
    assert sorted(one["Key"].rpartition(".")[2] for one in stored) == ["csv", "parquet"]
