"""The image's benchmark without containers: the changes and counts of each case, and the results
that it rejects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import image_build
from benchmarks.image_build import IMAGE, Bench, Measurement, problems, summarise, table
from infra.local.tests.platform_client import serve_platform
from nodesweep.configs.models import ImageConfig, PlatformConfig

LAYERS = {"sha256:base": 1000, "sha256:installed": 100}


@pytest.fixture(scope="module")
def tries(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Measurement]]:
    """Return all cases, measured twice, with a builder that takes no time; the last layer of each
    image is unique."""
    context = tmp_path_factory.mktemp("context") / "image"
    shutil.copytree(IMAGE, context, ignore=shutil.ignore_patterns("__pycache__"))
    images: list[str] = []

    def layer_sizes(uri: str) -> dict[str, int]:
        images.append(uri)
        return {**LAYERS, f"sha256:{len(images)}": 10}

    for served in serve_platform(tmp_path_factory.mktemp("platform")):
        served.s3.create_bucket(Bucket="benchmark")
        at = PlatformConfig(
            region="us-east-1",
            bucket="benchmark",
            role_arn="arn:aws:iam::000000000000:role/benchmark",
            endpoint_url=served.endpoint,
            credentials="platform",
            state_directory=str(served.state_dir),
            create_missing=True,
        )
        image = ImageConfig(context=str(context), base_image="localhost/base:1")
        return list(Bench(at, image, layer_sizes).cases(2))
    raise AssertionError("no platform")


def test_changes_are_built_and_the_same_content_is_found(
    tries: list[tuple[str, Measurement]],
) -> None:
    assert [(case, measurement.built) for case, measurement in tries] == [
        ("cold, first", True),
        ("cold", True),
        ("cold", True),
        ("code change", True),
        ("code change", True),
        ("no change", False),
        ("no change", False),
        ("touched", False),
        ("touched", False),
    ]


def test_layers_that_the_registry_had_are_not_counted(tries: list[tuple[str, Measurement]]) -> None:
    assert [measurement.pushed_bytes for _, measurement in tries] == [
        1110,
        10,
        10,
        10,
        10,
        0,
        0,
        0,
        0,
    ]
    assert all((measurement.sent_bytes > 10_000) == measurement.built for _, measurement in tries)


def test_touching_changes_time_and_mode_of_every_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    before = file.stat()
    Bench.touch(_bench(tmp_path))
    after = file.stat()
    assert (before.st_mode != after.st_mode, before.st_mtime != after.st_mtime) == (True, True)
    assert file.read_text() == "pass\n"


def _bench(folder: Path) -> Bench:
    at = PlatformConfig(
        region="us-east-1", bucket="bench", role_arn="arn:aws:iam::000000000000:role/benchmark"
    )
    return Bench(at, ImageConfig(context=str(folder)), lambda uri: {})


def cases(change_seconds: float = 2.0, built: bool = False) -> dict[str, object]:
    tries = [
        ("cold", 10.0, True),
        ("code change", change_seconds, True),
        ("code change", 3.0, True),
    ]
    tries += [("no change", 0.1, built), ("touched", 0.1, False)]
    return summarise(
        [(case, Measurement(seconds, was_built)) for case, seconds, was_built in tries]
    )


def test_ratios_are_to_the_cold_build_and_are_shown() -> None:
    found = cases()
    assert found["code change"]["median_seconds"] == 2.5  # type: ignore[index]
    assert found["code change"]["ratio_to_cold"] == 0.25  # type: ignore[index]
    assert "code change    2    2.50 s     0.250" in table(found)


def test_rebuilt_content_and_a_dear_change_are_problems() -> None:
    assert problems(cases(), 0.5) == []
    assert problems(cases(built=True), 0.5) == ["no change: the image was built again"]
    [slow] = problems(cases(change_seconds=9.0), 0.5)
    assert slow.startswith("code change: 0.60 ") and slow.endswith(" 0.5")


def test_machine_without_containers_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_build.ContainerCli, "find", lambda *_: None)
    assert image_build.main([]) == 2
    assert "podman" in capsys.readouterr().err
