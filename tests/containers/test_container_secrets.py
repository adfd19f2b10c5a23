"""Secrets planted in a build's inputs are not in any part of the image."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodesweep.configs.models import ImageConfig
from nodesweep.tasks.image.find import read_context, zip_context
from sagemaker_emulator.engine.container.cli import ContainerCli
from tests.containers.container_bench import REPOSITORY, build_log, run_build, tiny_context
from tests.planted import PLANTED, found_in, unpacked

pytestmark = [pytest.mark.slow, pytest.mark.containers]


def planted_context(folder: Path) -> Path:
    """Return a context as nodesweep sends it; its Dockerfile copies all files and uses an
    argument."""
    written, sent = folder / "written", folder / "sent"
    for place in (written, sent):
        place.mkdir()
    tiny_context(written)
    with (written / "Dockerfile").open("a") as file:
        file.write('COPY . /opt/context\nARG INDEX_TOKEN\nRUN test -n "$INDEX_TOKEN"\n')
    for name in (".env", "id_rsa", "service-account.json", ".aws/credentials"):
        (written / name).parent.mkdir(exist_ok=True)
        (written / name).write_text(PLANTED["file"])
    context = zip_context(read_context(ImageConfig(context=str(written))))
    with zipfile.ZipFile(io.BytesIO(context)) as archive:
        archive.extractall(sent)
    (sent / "train").chmod(0o755)
    return sent


def test_no_layer_of_an_image_holds_what_was_planted(
    platform: SimpleNamespace, cli: ContainerCli, tmp_path: Path
) -> None:
    """The history alone shows a build argument, which docs/security.md and `plan` say."""
    token = PLANTED["build argument"]
    build = run_build(platform, planted_context(tmp_path), "planted", BUILD_ARG_INDEX_TOKEN=token)
    log = build_log(platform, build)
    assert build["buildStatus"] == "SUCCEEDED", log
    [repository] = platform.ecr.describe_repositories(repositoryNames=[REPOSITORY])["repositories"]
    tagged = f"{repository['repositoryUri']}:planted"
    image = tmp_path / "image.tar"
    cli.call("image", "save", "--output", str(image), tagged, timeout_seconds=300)
    names: list[str] = []

    def parts() -> Iterator[tuple[str, bytes]]:
        yield "build log", "\n".join(log).encode()
        for name, body in unpacked("image", image.read_bytes()):
            names.append(name)
            yield name.rpartition("!")[2], body

    found = found_in(parts())
    assert any(name.endswith("opt/context/train") for name in names), "its layers are looked into"
    assert set(found) == {"build argument"}
    shown = {name.removesuffix(".json") for name in found["build argument"]}
    [config] = cli.call("inspect", "--format", "{{.Id}}", tagged).split()
    assert shown - {"image"} == {config}, "the history is in the image's configuration"
