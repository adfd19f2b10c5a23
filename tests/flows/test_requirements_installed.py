"""Packages of the user's code on the process engine are really installed, once, for the programs of
all sweeps."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import client
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import ImageBuildFailed
from nodesweep.flows.scaling_benchmark import SweepResult, scaling_benchmark
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running

pytestmark = [pytest.mark.usefixtures("prefect", "quiet"), pytest.mark.slow]
TRAIN = """
def main():
    import codewheel
    print(f"codewheel={codewheel.VERSION}; world_size=1; train_seconds=2.5;", flush=True)
"""


def write_wheel(folder: Path, name: str, version: str, source: str, entry_points: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", source)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", entry_points)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A served platform whose installers use one folder of wheels and no index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "codewheel", "1.0", "VERSION = '1.0'\n")
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(wheels))
    state = tmp_path / "state"
    with running(ServerConfig(0, state)) as endpoint:
        yield SimpleNamespace(
            endpoint=endpoint, state_dir=state, codebuild=client(endpoint, "codebuild")
        )


@pytest.fixture
def config(
    platform: SimpleNamespace, pipeline_config: Callable[..., BenchmarkConfig], tmp_path: Path
) -> BenchmarkConfig:
    image, code = tmp_path / "image", tmp_path / "code"
    code.mkdir()
    write_wheel(image, "tinytrain", "1.0", TRAIN, "[console_scripts]\ntrain = tinytrain:main\n")
    (image / "requirements.txt").write_text("./tinytrain-1.0-py3-none-any.whl\n")
    (image / "Dockerfile").write_text(
        "FROM python:3.11\nCOPY requirements.txt *.whl /tmp/build/\nRUN pip install -r"
        " /tmp/build/requirements.txt\n"
    )
    (code / "train.py").write_text("# what the toolkit would start\n")
    (code / "requirements.txt").write_text("codewheel==1.0\n")
    return pipeline_config(
        "own",
        platform={
            "endpoint_url": platform.endpoint,
            "state_directory": str(platform.state_dir),
        },
        sweep={"node_counts": [1]},
        training={"source_dir": "code"},
    )


def test_packages_are_installed_once_and_a_second_sweep_builds_nothing(
    platform: SimpleNamespace, config: BenchmarkConfig, tmp_path: Path
) -> None:
    def builds() -> int:
        return len(platform.codebuild.list_builds_for_project(projectName="nodesweep-image")["ids"])

    def said(result: SweepResult) -> str:
        assert [point.status for point in result.report.points] == ["Completed"], (
            result.report.points[0].log_tail
        )
        return "\n".join(path.read_text() for path in (result.folder / "logs").rglob("*.log"))

    first = said(scaling_benchmark(config))
    assert "codewheel=1.0" in first and builds() == 2
    second = said(scaling_benchmark(config))
    assert "codewheel=1.0" in second and "pip" not in second and builds() == 2
    requirements = tmp_path / "code" / "requirements.txt"
    requirements.write_text("codewheel==1.0\nnosuchwheel==9\n")
    with pytest.raises(ImageBuildFailed) as raised:
        scaling_benchmark(config)
    assert str(requirements) in str(raised.value)
    assert "nosuchwheel==9" in str(raised.value)
