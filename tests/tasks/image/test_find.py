from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig, ImageConfig
from nodesweep.errors import ImageBuildFailed, PreflightRefused
from nodesweep.tasks.image.find import (
    Image,
    arguments_to_send,
    find,
    find_repository,
    list_context,
    pushed_image,
    read_context,
    source_revision,
    zip_context,
)
from tests.plain import plain
from tests.tasks.image.image_fakes import make_context, make_repository, push

DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def config(tmp_path: Path) -> ImageConfig:
    return make_context(tmp_path)


def test_tag_is_the_content_not_the_place(config: ImageConfig, tmp_path: Path) -> None:
    before = read_context(config)
    moved = tmp_path / "elsewhere"
    Path(config.context).rename(moved)
    assert read_context(ImageConfig(context=str(moved))).tag == before.tag
    assert list(before.files) == [".dockerignore", "Dockerfile", "train.py"]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("print(2)\n"),
        lambda root: (root / "new.py").write_text(""),
        lambda root: (root / "train.py").rename(root / "main.py"),
        lambda root: (root / "Dockerfile").write_text("FROM scratch\nENV A=1\n"),
    ],
)
def test_tag_follows_every_change(config: ImageConfig, change: Callable[[Path], Any]) -> None:
    before = read_context(config).tag
    change(Path(config.context))
    assert read_context(config).tag != before


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").chmod(0o755),
        lambda root: (root / "train.py").chmod(0o600),
        lambda root: os.utime(root / "train.py", (1, 1)),
        lambda root: (root / "pkg" / "notes.md").write_text("changed\n"),
        lambda root: (root / "empty").mkdir(),
    ],
)
def test_mode_time_ignored_files_and_empty_folders_change_nothing(
    config: ImageConfig, change: Callable[[Path], Any]
) -> None:
    before = read_context(config)
    body = zip_context(before)
    change(Path(config.context))
    after = read_context(config)
    assert (after.tag, zip_context(after)) == (before.tag, body)


def test_tag_follows_base_image_and_build_arguments(config: ImageConfig) -> None:
    updates: list[dict[str, Any]] = [{}, {"base_image": "a"}, {"build_args": {"X": "1"}}]
    assert len({read_context(config.model_copy(update=update)).tag for update in updates}) == 3


def test_builder_is_no_part_of_the_tag(config: ImageConfig) -> None:
    assert (
        read_context(config.model_copy(update={"builder": "docker"})).tag
        == read_context(config).tag
    )


def test_tag_follows_the_digest_of_the_base(tmp_path: Path) -> None:
    config = make_context(tmp_path, "ARG BASE_IMAGE=base:1\nFROM ${BASE_IMAGE}\n")
    by_name = read_context(config)
    first = read_context(config, {"base:1": f"base@{DIGEST}"})
    second = read_context(config, {"base:1": f"base@{DIGEST[:-1]}b"})
    assert len({by_name.tag, first.tag, second.tag}) == 3
    assert (by_name.bases, first.bases) == (("base:1",), (f"base@{DIGEST}",))
    assert (dict(by_name.build_args), dict(first.build_args)) == (
        {},
        {"BASE_IMAGE": f"base@{DIGEST}"},
    )


def test_base_that_no_argument_names_is_built_on_by_its_name_and_counts_by_its_digest(
    tmp_path: Path,
) -> None:
    config = make_context(tmp_path, "FROM base:1\n")
    pinned = read_context(config, {"base:1": f"base@{DIGEST}"})
    assert pinned.tag != read_context(config).tag
    assert dict(pinned.build_args) == {}


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        # in .gitignore it would match at any depth
        ("*.md", ["Dockerfile", "a.py", "pkg/b.py", "pkg/notes.md"]),
        ("**/*.md", ["Dockerfile", "a.py", "pkg/b.py"]),
        ("pkg", ["Dockerfile", "a.py"]),
        ("/pkg/", ["Dockerfile", "a.py"]),
        ("./pkg\n!pkg/b.py", ["Dockerfile", "a.py", "pkg/b.py"]),
        ("# pkg\n\n", ["Dockerfile", "a.py", "pkg/b.py", "pkg/notes.md"]),
        ("*\n!a.py", ["Dockerfile", "a.py"]),
        ("\ufeffpkg\na.py", ["Dockerfile"]),
        ("caf\udce9.py\npkg", ["Dockerfile", "a.py"]),
    ],
)
def test_ignore_file_is_read_as_docker_does(tmp_path: Path, lines: str, kept: list[str]) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("Dockerfile", "a.py", "pkg/b.py", "pkg/notes.md"):
        (tmp_path / name).write_text("")
    (tmp_path / ".dockerignore").write_text(lines, "utf-8", "surrogateescape")
    files = read_context(ImageConfig(context=str(tmp_path))).files
    assert [name for name in files if name != ".dockerignore"] == kept


@pytest.mark.parametrize("own", ["*.md\n", "*.md\nDockerfile.dockerignore\n", "\ufeff*.md\n"])
def test_ignore_file_of_the_dockerfile_stands_above_the_other(tmp_path: Path, own: str) -> None:
    for name in ("Dockerfile", "a.py", "b.md"):
        (tmp_path / name).write_text("")
    (tmp_path / ".dockerignore").write_text("*.py\n.dockerignore\n")
    assert list(read_context(ImageConfig(context=str(tmp_path))).files) == ["Dockerfile", "b.md"]
    (tmp_path / "Dockerfile.dockerignore").write_text(own)
    kept = [".dockerignore", "Dockerfile", "Dockerfile.dockerignore", "a.py"]
    assert list(read_context(ImageConfig(context=str(tmp_path))).files) == kept


def test_context_without_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightRefused, match=r"image\.context: .* Dockerfile"):
        read_context(ImageConfig(context=str(tmp_path)))


def test_zip_has_the_same_bytes_each_time_and_programs_are_executable(config: ImageConfig) -> None:
    (Path(config.context) / "start.sh").write_text("#!/bin/sh\n")
    context = read_context(config)
    body = zip_context(context)
    assert body == zip_context(context)
    modes = {
        info.filename: info.external_attr >> 16
        for info in zipfile.ZipFile(io.BytesIO(body)).infolist()
    }
    assert list(modes) == list(context.files)
    assert (modes["start.sh"], modes["train.py"]) == (0o100755, 0o100644)


@pytest.mark.parametrize(
    "change", [lambda path: path.write_text("other\n"), lambda path: path.unlink()]
)
def test_file_that_changed_after_the_tag_was_computed_is_not_built(
    tmp_path: Path, config: ImageConfig, change: Callable[[Path], Any], snapshot: SnapshotAssertion
) -> None:
    context = read_context(config)
    change(Path(config.context) / "train.py")
    with pytest.raises(ImageBuildFailed) as refused:
        zip_context(context)
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_source_revision_is_sent_where_the_dockerfile_asks_and_is_no_part_of_the_tag(
    tmp_path: Path,
) -> None:
    config = make_context(tmp_path, "FROM scratch\nARG SOURCE_REVISION=unknown\n")
    root = Path(config.context)
    assert arguments_to_send(read_context(config)) == {}  # no repository around it
    before = read_context(config).tag
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    context = read_context(config)
    revision = source_revision(root)
    assert revision is not None and len(revision) == 40
    assert (arguments_to_send(context), context.tag) == ({"SOURCE_REVISION": revision}, before)
    (root / "train.py").write_text("changed\n")
    assert source_revision(root) == f"{revision}-dirty"
    given = config.model_copy(update={"build_args": {"SOURCE_REVISION": "v1"}})
    assert arguments_to_send(read_context(given)) == {"SOURCE_REVISION": "v1"}
    (root / "Dockerfile").write_text("FROM scratch\n")
    assert arguments_to_send(read_context(config)) == {}


def test_work_tree_that_an_installed_context_lies_in_says_nothing_of_it(tmp_path: Path) -> None:
    project = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / ".gitignore").write_text(".venv/\n")
    subprocess.run([*project, "init", "-q"], check=True)
    subprocess.run([*project, "add", "."], check=True)
    subprocess.run([*project, "commit", "-q", "-m", "first"], check=True)
    (tmp_path / ".venv").mkdir()
    installed = make_context(tmp_path / ".venv", "FROM scratch\nARG SOURCE_REVISION=unknown\n")
    assert arguments_to_send(read_context(installed)) == {}


def test_source_revision_is_unknown_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_revision(tmp_path) is None


def test_image_is_found_by_tag_only_when_it_is_there(aws: Callable[[str], Any]) -> None:
    ecr = aws("ecr")
    assert find(ecr, "nodesweep", "ctx-1") is None
    make_repository(ecr)
    assert find(ecr, "nodesweep", "ctx-1") is None
    assert push(ecr, "ctx-1") == find(ecr, "nodesweep", "ctx-1")


def test_missing_repository_is_made_only_where_allowed(
    aws: Callable[[str], Any], snapshot: SnapshotAssertion
) -> None:
    ecr = aws("ecr")
    with pytest.raises(PreflightRefused) as refused:
        find_repository(ecr, ImageConfig(), False, "ctx-1")
    assert str(refused.value) == snapshot
    assert find_repository(ecr, ImageConfig(), True, "ctx-1").endswith("/nodesweep")
    made = ecr.describe_repositories(repositoryNames=["nodesweep"])["repositories"][0]
    assert made["imageTagMutability"] == "IMMUTABLE"


def test_repository_is_found_whose_creation_was_answered_to_nobody(
    aws: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore repeats a call whose response was lost; for the second call, the repository already
    exists."""
    ecr = aws("ecr")
    create = ecr.create_repository

    def create_twice(**request: Any) -> Any:
        create(**request)
        return create(**request)

    monkeypatch.setattr(ecr, "create_repository", create_twice)
    uri = find_repository(ecr, ImageConfig(repository="images"), create_missing=True, tag="any")
    assert (
        uri
        == ecr.describe_repositories(repositoryNames=["images"])["repositories"][0]["repositoryUri"]
    )


def test_repository_whose_tags_can_be_moved_is_refused(aws: Callable[[str], Any]) -> None:
    ecr = aws("ecr")
    ecr.create_repository(repositoryName="nodesweep", imageTagMutability="MUTABLE")
    with pytest.raises(
        PreflightRefused, match="put-image-tag-mutability --repository-name nodesweep"
    ):
        find_repository(ecr, ImageConfig(), True, "ctx-1")


@pytest.mark.parametrize(
    ("mutability", "pattern", "taken"),
    [
        ("IMMUTABLE_WITH_EXCLUSION", "latest*", True),
        ("IMMUTABLE_WITH_EXCLUSION", "ctx-*", False),
        ("MUTABLE_WITH_EXCLUSION", "ctx-*", True),
        ("MUTABLE_WITH_EXCLUSION", "v*", False),
    ],
)
def test_exceptions_from_the_repositorys_mutability_count(
    mutability: str, pattern: str, taken: bool, snapshot: SnapshotAssertion
) -> None:
    class Ecr:
        def describe_repositories(self, repositoryNames: list[str]) -> dict[str, Any]:
            filters = [{"filterType": "WILDCARD", "filter": pattern}]
            found = {
                "imageTagMutability": mutability,
                "imageTagMutabilityExclusionFilters": filters,
            }
            return {"repositories": [{**found, "repositoryUri": "uri"}]}

        class exceptions:
            RepositoryNotFoundException = KeyError

    if taken:
        assert find_repository(Ecr(), ImageConfig(), False, "ctx-1") == "uri"
    else:
        with pytest.raises(PreflightRefused) as refused:
            find_repository(Ecr(), ImageConfig(), False, "ctx-1")
        assert str(refused.value) == snapshot


def fail() -> str:
    raise ImageBuildFailed("it broke")


def test_image_that_is_in_ecr_after_the_build_is_used_even_if_it_failed(
    aws: Callable[[str], Any],
) -> None:
    ecr = aws("ecr")
    uri = make_repository(ecr)
    digest = push(ecr, "ctx-1")
    assert pushed_image(ecr, "nodesweep", uri, "ctx-1", "b", fail) == Image(
        f"{uri}@{digest}", "ctx-1", built=False
    )
    for said in (None, digest):
        image = pushed_image(ecr, "nodesweep", uri, "ctx-1", "b", lambda said=said: said)
        assert image == Image(f"{uri}@{digest}", "ctx-1", built=True)


@pytest.mark.parametrize(
    "build",
    [fail, lambda: None],
)
def test_build_without_an_image_in_ecr_failed(
    aws: Callable[[str], Any], build: Callable[[], str | None], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ImageBuildFailed) as refused:
        pushed_image(aws("ecr"), "nodesweep", "uri", "ctx-1", "b", build)
    assert str(refused.value) == snapshot


def test_tag_that_is_another_image_than_the_pushed_one_is_not_used(
    aws: Callable[[str], Any],
    snapshot: SnapshotAssertion,
) -> None:
    ecr = aws("ecr")
    uri = make_repository(ecr)
    push(ecr, "ctx-1")
    with pytest.raises(ImageBuildFailed) as refused:
        pushed_image(ecr, "nodesweep", uri, "ctx-1", "b", lambda: DIGEST)
    assert str(refused.value) == snapshot


def test_links_inside_the_context_are_followed_and_others_refused_by_name(
    config: ImageConfig, tmp_path_factory: pytest.TempPathFactory, snapshot: SnapshotAssertion
) -> None:
    root, home = Path(config.context), tmp_path_factory.mktemp("home")
    (root / "lib").mkdir()
    (root / "lib" / "a.py").write_text("")
    (root / "app").symlink_to("lib")
    assert {"app/a.py", "lib/a.py"} <= set(read_context(config).files)
    (home / "credentials").write_text("x")
    (root / "weights").symlink_to(home / "credentials")
    (root / "gone").symlink_to("nowhere")
    with pytest.raises(PreflightRefused) as refused:
        read_context(config)
    broken, outside = sorted(refused.value.problems)
    assert plain(broken, context=root) == snapshot
    assert plain(outside, context=root, home=home) == snapshot
    (root / ".dockerignore").write_text("weights\ngone\n")
    assert "lib/a.py" in read_context(config).files


def test_an_excluded_folder_is_not_looked_into_unless_a_file_of_it_is_included(
    config: ImageConfig,
) -> None:
    root = Path(config.context)
    (root / "node_modules" / "x").mkdir(parents=True)
    (root / "node_modules" / "x" / "gone").symlink_to("nowhere")
    (root / "node_modules" / "x" / "kept").write_text("")
    (root / ".dockerignore").write_text("node_modules\n")
    assert "node_modules/x/kept" not in list_context(root).files
    (root / ".dockerignore").write_text("node_modules\n!node_modules/x/kept\n")
    assert "node_modules/x/kept" in list_context(root).files


def test_secrets_and_the_repository_are_left_out_of_the_context(config: ImageConfig) -> None:
    root = Path(config.context)
    before = read_context(config)
    (root / ".git").mkdir()
    for name in (".git/config", ".env", "id_rsa"):
        (root / name).write_text("x")
    after = read_context(config)
    assert (after.tag, after.files) == (before.tag, before.files)
    assert list_context(root).secrets == (".env", ".git", "id_rsa")
    (root / ".dockerignore").write_text("id_rsa\n.git\n")
    assert list_context(root).secrets == (".env",)


@pytest.mark.parametrize("state", [".nodesweep/platform", "state"])
def test_what_nodesweep_writes_is_left_out_of_a_context_at_the_projects_root(
    config: ImageConfig,
    make_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
) -> None:
    root = Path(config.context)
    whole = make_config(platform={"state_directory": state}, report={"directory": "reports"})
    monkeypatch.chdir(root)
    before = read_context(config, left_out=whole.own_folders)
    for name in (".nodesweep/machine/key", f"{state}/platform.log", "reports/s1/sweep.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / "reports" / "latest").symlink_to("s1")
    (root / state / "python").symlink_to("/usr/bin/env")
    (root / "results").symlink_to("reports")
    after = read_context(config, left_out=whole.own_folders)
    assert (after.tag, after.files) == (before.tag, before.files)
