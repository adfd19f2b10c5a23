"""The commands of docs/aws.md run unchanged against the local platform, and its numbers are those
of the catalog."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from infra.local.tests.platform_client import client, serve_simulated
from nodesweep.cli.main import main
from tests.infra.aws.deployed import template
from tests.processes.prefect_home import with_tables

REPOSITORY = Path(__file__).resolve().parents[3]
GUIDE = (REPOSITORY / "docs" / "aws.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)

EMPTY_REPOSITORY = """aws ecr batch-delete-image --repository-name nodesweep \
--image-ids "$(aws ecr list-images \\
  --repository-name nodesweep --query imageIds --output json)"
"""
"""Done by EmptyOnDelete on AWS; moto does not know it, and refuses to delete the stack."""


def test_cost_in_the_guide_is_the_plans() -> None:
    result = CliRunner().invoke(main, ["plan", str(REPOSITORY / "configs" / "first_sweep.yaml")])
    [bound] = re.findall(r"^cost bound: .*$", result.output, re.MULTILINE)
    assert f"> {bound}\n" in GUIDE
    assert round(3 * 5 / 60 * 0.115, 2) == 0.03


def test_parameters_in_the_guide_exist() -> None:
    named = set(re.findall(r"`([A-Z][a-z]\w+)=", GUIDE)) | set(
        re.findall(r"ParameterKey=(\w+)", GUIDE)
    )
    assert named <= set(template()["Parameters"]) and len(named) > 8


@pytest.mark.slow  # a Prefect server, a sweep, the AWS CLI
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_commands_lead_to_a_report_and_back_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "platform").mkdir()
    with contextmanager(serve_simulated)(tmp_path / "platform") as platform:
        folder = tmp_path / "checkout"
        folder.mkdir()
        (folder / "infra").symlink_to(REPOSITORY / "infra")
        home = tmp_path / "home"
        home.mkdir()
        script = tmp_path / "guide.sh"
        script.write_text(
            "set -euo pipefail\n" + "\n".join([*BLOCKS[:-1], EMPTY_REPOSITORY, BLOCKS[-1]])
        )
        done = subprocess.run(
            ["bash", str(script)], cwd=folder, env=environment(home, platform), capture_output=True,
            text=True,
            timeout=1800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "first.yaml" in done.stdout
        assert re.search(
            r"nodesweep/sweeps/first-sweep-\d{14}-[0-9a-f]{8}/report/report\.html", done.stdout
        )
        assert_gone(platform)
        assert [path.name for path in folder.iterdir()] == ["infra"]


def environment(home: Path, platform: SimpleNamespace) -> dict[str, str]:
    """The environment of a user with credentials only; a variable of boto3 directs every call to
    the platform."""
    credentials = home / ".aws" / "credentials"
    credentials.parent.mkdir()
    shutil.copy(platform.state_dir / "aws-credentials", credentials)
    programs = Path(sys.executable).parent
    assert shutil.which("aws", path=str(programs)) and shutil.which("nodesweep", path=str(programs))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "PREFECT_"))
    }
    return {
        **kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"),
        "AWS_ENDPOINT_URL": platform.endpoint,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PREFECT_HOME": str(with_tables(home / "prefect")),
    }  # fmt: skip


def assert_gone(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match="does not exist"):
        client(platform.endpoint, "cloudformation").describe_stacks(StackName="nodesweep")
    assert [one["Name"] for one in platform.s3.list_buckets()["Buckets"]] == ["results"]
    assert platform.ecr.describe_repositories()["repositories"] == []
    iam = client(platform.endpoint, "iam")
    assert iam.list_roles()["Roles"] == []
