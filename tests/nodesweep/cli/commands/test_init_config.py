from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

import nodesweep.cli.commands.init_config
from nodesweep.cli.main import main
from nodesweep.configs.load import ConfigError, load_config

OUTPUTS = {
    "BucketName": "my-bucket",
    "Prefix": "nodesweep",
    "ExecutionRoleArn": "arn:aws:iam::210987654321:role/r",
    "RepositoryName": "nodesweep",
    "CodeBuildProjectName": "nodesweep-image",
    "BaseImageRegistry": "763104351884.dkr.ecr.eu-west-1.amazonaws.com",
}


@pytest.fixture(autouse=True)
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The outputs of the stack `mine`; change them freely."""
    outputs = dict(OUTPUTS)

    def read(client: object, name: str) -> dict[str, str]:
        if name != "mine":
            raise ConfigError(f"no CloudFormation stack {name!r}")
        return outputs

    monkeypatch.setattr(nodesweep.cli.commands.init_config, "read_outputs", read)
    monkeypatch.chdir(tmp_path)
    return outputs


def init(*arguments: str, name: str = "mine") -> Result:
    return CliRunner().invoke(
        main, ["config", "init", "--from-stack", name, "--region", "eu-west-1", *arguments]
    )


def test_file_is_a_valid_config_and_says_what_is_next(snapshot: SnapshotAssertion) -> None:
    result = init("--output", "my.yaml")
    assert result.exit_code == 0
    assert result.stdout == snapshot
    checked = CliRunner().invoke(main, ["config", "validate", "my.yaml"])
    assert checked.exit_code == 0
    assert checked.output == snapshot
    assert load_config(Path("my.yaml")).platform.bucket == "my-bucket"
    assert CliRunner().invoke(main, ["plan", "my.yaml"]).exit_code == 0


def test_without_output_the_config_is_printed() -> None:
    result = init()
    assert result.exit_code == 0
    Path("piped.yaml").write_text(result.stdout)
    assert init("--output", "my.yaml").exit_code == 0
    assert result.stdout == Path("my.yaml").read_text()
    assert load_config(Path("piped.yaml")).platform.region == "eu-west-1"


def test_existing_file_is_kept_unless_forced(snapshot: SnapshotAssertion) -> None:
    path = Path("my.yaml")
    path.write_text("mine")
    refused = init("--output", "my.yaml")
    assert refused.exit_code == 2
    assert refused.stderr == snapshot
    assert path.read_text() == "mine"
    assert init("--output", "my.yaml", "--force").exit_code == 0
    assert load_config(path).platform.bucket == "my-bucket"


def test_the_state_folder_is_the_local_platforms() -> None:
    refused = init("--state-directory", "state")
    assert (refused.exit_code, "--endpoint-url" in refused.output) == (2, True)


def test_unknown_stack_is_bad_input_and_writes_nothing(snapshot: SnapshotAssertion) -> None:
    result = init("--output", "my.yaml", name="nowhere")
    assert result.exit_code == 2
    assert result.stderr == snapshot
    assert not list(Path().iterdir())


def test_outputs_that_make_no_valid_config_write_nothing(
    stack: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    stack["BucketName"] = "Not A Bucket"
    result = init("--output", "my.yaml")
    assert result.exit_code == 2
    assert result.stderr == snapshot
    assert not list(Path().iterdir())
