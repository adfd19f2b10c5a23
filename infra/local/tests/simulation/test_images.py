"""Images that are not built: the inputs of their digests, and references that resolve."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sagemaker_emulator.interfaces import BuiltImage, ImageBuildError
from sagemaker_emulator.simulation.images import SimulatedImageStore

URI = "000000000001.dkr.ecr.us-east-1.amazonaws.com/team/trainer"


def build(
    store: SimulatedImageStore, context: Path, tag: str = "v1", **arguments: str
) -> BuiltImage:
    lines: list[str] = []
    image = store.build(
        context, "team/trainer", tag, arguments, lines.append, threading.Event(), 60.0
    )
    assert lines[0].startswith("[simulated]")
    return image


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch")
    return folder


def test_digest_is_that_of_the_context_and_the_arguments(tmp_path: Path, context: Path) -> None:
    store = SimulatedImageStore(tmp_path)
    first = build(store, context)
    assert build(store, context, "v2").digest == first.digest
    assert build(store, context, "v3", PYTHON="3.11").digest != first.digest
    (context / "train.py").write_text("")
    assert build(store, context, "v4").digest != first.digest


def test_images_resolve_by_tag_and_digest_also_after_a_restart(
    tmp_path: Path, context: Path
) -> None:
    digest = build(SimulatedImageStore(tmp_path), context).digest
    store = SimulatedImageStore(tmp_path)
    assert store.images() == [("team/trainer", "v1", digest)]
    assert store.resolve(f"{URI}:v1") == store.resolve(f"{URI}@{digest}") is not None
    assert store.resolve(URI) is None  # latest
    assert store.resolve(f"{URI}@sha256:{'0' * 64}") is None
    assert store.resolve(f"{URI.removesuffix('er')}:v1") is None


def test_images_of_other_registries_are_taken_as_there(tmp_path: Path) -> None:
    uri = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1"
    assert SimulatedImageStore(tmp_path).resolve(uri) is not None


def test_a_context_needs_a_dockerfile(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="Dockerfile"):
        build(SimulatedImageStore(tmp_path), tmp_path)
