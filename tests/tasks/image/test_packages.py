from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.storage import push_problem
from nodesweep.scaling.rules.dockerfile import dockerfile_bases
from nodesweep.scaling.rules.rule import Requirements
from nodesweep.tasks.image.find import BuildContext, read_context
from nodesweep.tasks.image.packages import build_failure_remedy, read_requirements, write_layer
from tests.plain import plain

Configs = Callable[..., BenchmarkConfig]
BASE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep@sha256:" + "a" * 64


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import timm\n")
    (folder / "requirements.txt").write_text("timm==1.0\n")
    return folder


def read(make_config: Configs, code: Path, **training: Any) -> Requirements:
    found = read_requirements(make_config(training={"source_dir": str(code), **training}).training)
    assert found is not None
    return found


def layer_of(
    make_config: Configs, code: Path, folder: Path, base: str = BASE, **image: Any
) -> BuildContext:
    folder.mkdir()
    config = make_config(training={"source_dir": str(code)}, **({"image": image} if image else {}))
    requirements = read_requirements(config.training)
    assert requirements is not None
    return read_context(write_layer(requirements, base, config.image, folder))


def test_the_same_requirements_on_the_same_image_are_the_same_layer(
    make_config: Configs, code: Path, tmp_path: Path
) -> None:
    first = layer_of(make_config, code, tmp_path / "1")
    (code / "train.py").write_text("import timm, os\n")
    assert layer_of(make_config, code, tmp_path / "2").tag == first.tag
    other_base = layer_of(make_config, code, tmp_path / "3", BASE[:-1] + "b")
    (code / "requirements.txt").write_text("timm==1.1\n")
    other_content = layer_of(make_config, code, tmp_path / "4")
    assert len({first.tag, other_base.tag, other_content.tag}) == 3
    assert first.bases == (BASE,), "what the builder logs in to"


def test_the_layer_holds_included_files_and_pips_settings(
    make_config: Configs, code: Path, tmp_path: Path
) -> None:
    (code / "deep").mkdir()
    (code / "requirements.txt").write_text(
        "-rdeep/more.txt  # and those\n--constraint=limits.txt\n"
    )
    (code / "deep" / "more.txt").write_text("timm\n-c../limits.txt\n")
    (code / "limits.txt").write_text("timm<2\n")
    args = {"PIP_INDEX_URL": "https://index.example/simple", "OTHER": "x"}
    context = layer_of(make_config, code, tmp_path / "layer", context="image", build_args=args)
    assert set(context.files) == {"Dockerfile", "requirements.txt", "deep/more.txt", "limits.txt"}
    assert context.build_args == {
        "BASE_IMAGE": BASE,
        "PIP_INDEX_URL": "https://index.example/simple",
    }
    dockerfile = (context.root / "Dockerfile").read_text()
    assert [base.argument for base in dockerfile_bases(dockerfile, context.build_args)] == [
        "BASE_IMAGE"
    ]
    assert "\nARG PIP_INDEX_URL\n" in dockerfile


@pytest.mark.parametrize(
    ("data", "included"),
    [
        (b"\xef\xbb\xbf-r more.txt\n", "more.txt"),
        ("timm\r\n-r more.txt\r\n".encode("utf-16"), "more.txt"),
        ("\ufeff-r more.txt\n".encode("utf-16-be"), "more.txt"),
        ("# coding: latin-1\n-r m\xf6re.txt\n".encode("latin-1"), "m\xf6re.txt"),
        (b"# coding: rot13\n-r more.txt\n", "more.txt"),
        (b"# one \\\n-r more.txt\n", "more.txt"),
        (b"timm \\\n# one \\\n-r more.txt\n", "more.txt"),
        (b"-r mo\\\r\nre.txt\n", "more.txt"),
        (b"-r 'my more.txt'  # those\n", "my more.txt"),
        (b"-r link.txt\n", "link.txt"),
    ],
)
def test_files_are_found_as_pip_does_and_copied_as_they_are(
    make_config: Configs, code: Path, tmp_path: Path, data: bytes, included: str
) -> None:
    (code / "deep").mkdir()
    (code / "deep" / "more.txt").write_text("timm\n")
    if included == "link.txt":
        (code / included).symlink_to("deep/more.txt")
    else:
        (code / included).write_text("timm\n")
    (code / "requirements.txt").write_bytes(data)
    context = layer_of(make_config, code, tmp_path / "layer")
    assert set(context.files) == {"Dockerfile", "requirements.txt", included}
    assert (context.root / "requirements.txt").read_bytes() == data


@pytest.mark.parametrize(
    "text",
    ["timm==1.0\n", "--find-links",  # pip's to refuse
     "timm @ https://host/timm.whl", "-e git+https://host/timm#egg=timm", "-f https://host/wheels\ntimm",
     "timm[extra] ; python_version > '3.8'  # ./not/a/path", "--extra-index-url https://host/simple\ntimm"],
)  # fmt: skip
def test_packages_from_elsewhere_are_a_layer(make_config: Configs, code: Path, text: str) -> None:
    (code / "requirements.txt").write_text(text)
    assert read(make_config, code).at_start is None


@pytest.mark.parametrize(
    "text",
    [
        "./own",
        "-e .",
        "-e./own",
        "--editable=own/",
        "wheels/own-1.0.whl",
        "own-1.0.whl",
        "own @ file:///opt/ml/code/own",
        "--find-links wheels\nown",
        "--index-url https://user:${TOKEN}@host/simple\nown",
    ],
)
def test_what_only_the_job_knows_is_installed_at_the_start(
    make_config: Configs, code: Path, text: str, snapshot: SnapshotAssertion
) -> None:
    (code / "requirements.txt").write_text(f"timm\n{text}\n")
    reason = read(make_config, code).at_start
    assert reason is not None
    assert reason.startswith("requirements.txt: ")
    assert reason == snapshot


def test_pips_settings_of_the_job_are_none_of_a_build(
    make_config: Configs, code: Path, snapshot: SnapshotAssertion
) -> None:
    reason = read(
        make_config,
        code,
        environment={"PIP_INDEX_URL": "https://index.example/simple", "OTHER": "x"},
    ).at_start
    assert reason == snapshot


@pytest.mark.parametrize("text", ["# nothing yet\n\n", None])
def test_code_without_requirements_has_no_layer(
    make_config: Configs, code: Path, text: str | None
) -> None:
    (code / "requirements.txt").unlink()
    if text is not None:
        (code / "requirements.txt").write_text(text)
    config = make_config(training={"source_dir": str(code)})
    assert read_requirements(config.training) is None
    assert read_requirements(make_config().training) is None


@pytest.mark.parametrize("named", ["gone.txt", "../outside.txt", "'gone.txt"])
def test_included_file_that_does_not_come_with_the_code_is_refused(
    tmp_path: Path, make_config: Configs, code: Path, named: str, snapshot: SnapshotAssertion
) -> None:
    (code.parent / "outside.txt").write_text("timm\n")
    (code / "requirements.txt").write_text(f"-r {named}\n")
    assert [plain(each, folder=tmp_path) for each in read(make_config, code).missing] == snapshot


def test_a_layer_needs_a_repository(aws: Callable[[str], Any], snapshot: SnapshotAssertion) -> None:
    ecr = aws("ecr")
    assert push_problem(ecr, "nodesweep") == snapshot
    ecr.create_repository(repositoryName="nodesweep")
    assert push_problem(ecr, "nodesweep") is None


def test_a_package_that_wants_another_torch_comes_with_the_cure(
    snapshot: SnapshotAssertion,
) -> None:
    said = (
        "ERROR: Cannot install -r ./requirements.txt (line 1) because these package versions have"
        " conflicting dependencies.\nThe conflict is caused by:\n"
        "    torchvision 0.20.0 depends on torch==2.5.0\n"
        "    The user requested (constraint) torch<=2.14.1,==2.13.0+cpu\n"
    )
    assert build_failure_remedy(said) == snapshot
    assert build_failure_remedy("ERROR: No matching distribution found for timm==99") == ""
