"""Facts that nodesweep and the emulator state independently of each other agree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodesweep.aws import local_status
from nodesweep.cli import processes
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.tasks.image.packages import _dockerfile
from sagemaker_emulator import process_identity, progress
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.builds.buildspec import parse_buildspec
from sagemaker_emulator.engine.host.capacity import LINK_BY_INSTANCE_TYPE, VCPUS_BY_INSTANCE_TYPE
from sagemaker_emulator.engine.process.dockerfile import Install, parse
from sagemaker_emulator.server import contract

IMAGE = Path(__file__).resolve().parents[3] / "infra" / "image"


def test_instance_types_are_those_of_the_catalogue() -> None:
    assert {
        row.instance_type: (
            row.vcpus,
            (row.network_gbit_per_second, row.network_latency_milliseconds),
        )
        for row in load_catalogue().local
    } == {
        name: (vcpus, tuple(LINK_BY_INSTANCE_TYPE[name]))
        for name, vcpus in VCPUS_BY_INSTANCE_TYPE.items()
    }


def test_the_status_page_is_the_same() -> None:
    names = ("STATUS_PATH", "SERVICE")
    assert [getattr(local_status, name) for name in names] == [
        getattr(contract, name) for name in names
    ]
    assert local_status.KEYS_FILE == contract.CREDENTIALS_FILE


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o620])
def test_keys_that_others_may_reach_are_not_read(tmp_path: Path, mode: int) -> None:
    """A command would send the key to whatever program holds the port."""
    access_keys(tmp_path)
    (tmp_path / local_status.KEYS_FILE).chmod(mode)
    with pytest.raises(local_status.KeyUnreadable, match=rf"mode is {mode:o}"):
        local_status.read_key(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_keys_of_another_user_are_not_read(tmp_path: Path) -> None:
    access_keys(tmp_path)
    os.chown(tmp_path / local_status.KEYS_FILE, 12345, 12345)
    with pytest.raises(local_status.KeyUnreadable, match="user 12345"):
        local_status.read_key(tmp_path)


def test_buildspec_of_the_image_builds_and_pushes() -> None:
    spec = parse_buildspec((IMAGE / "buildspec.yml").read_text())
    assert "docker build" in spec.phases["build"].commands[0]
    assert spec.phases["post_build"].commands[0].startswith("docker push")
    assert all(spec.phases[name].aborts for name in ("pre_build", "build", "post_build"))


def test_layer_of_the_codes_requirements_keeps_the_images_torch() -> None:
    recipe = parse(_dockerfile({"requirements.txt": "timm"}, {}), {"BASE_IMAGE": "base"})
    files = ("/opt/nodesweep/packages/requirements.txt",)
    assert recipe.installs == [Install(files, (), pins="^torch(vision|audio)?==")]


def test_processes_are_waited_for_alike() -> None:
    assert (processes.STILL_SECONDS, processes.LONGEST_SECONDS) == (
        progress.STILL_SECONDS,
        progress.LONGEST_SECONDS,
    )
    assert process_identity.start_ticks(1) == processes.start_ticks(1)
