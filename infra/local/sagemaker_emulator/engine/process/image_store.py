"""Stores images that need no containers: a virtual environment and the training program.

<state>/images/<digest>/image.json   digest, environment (ENV), labels, python
                       code/         files that the Dockerfile copies to /opt/ml/code
                       files/        files that the Dockerfile copies elsewhere, by absolute path
                       venv          link to the environment
       /images/index.json            [{repository, tag, digest}]
       /venvs/<digest>/              environments, shared by images that differ only in code;
                                     complete once complete.json exists
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sagemaker_emulator.engine.process.build_run import BuildRun, build_lock
from sagemaker_emulator.engine.process.dockerfile import Recipe, parse
from sagemaker_emulator.engine.process.image_content import (
    Content,
    is_executable,
    python_name,
    read_content,
)
from sagemaker_emulator.engine.process.installer import end_leftovers, make_venv
from sagemaker_emulator.interfaces import BuiltImage, ImageBuildError
from sagemaker_emulator.state.files import read_json, write_atomically

_INDEX_REMEDY = "remove it and restart; runs rebuild their images from installed environments"
_RECORD_FIELDS = {"digest", "environment", "labels", "folder", "base"}
_REFERENCE = re.compile(
    r"(?:(?P<registry>[^/]*[.:][^/]*|localhost)/)?(?P<repository>[a-z0-9._/-]+)"
    r"(?:@sha256:(?P<digest>[0-9a-f]{64})|:(?P<tag>[\w][\w.-]{0,127}))?"
)


class ProcessImageStore:
    """Builds and stores images for the process engine.

    See `sagemaker_emulator.interfaces.ImageStore`.
    """

    def __init__(self, state_dir: Path) -> None:
        """Open the store, and kill processes that builds of a killed server left running."""
        self._images = state_dir.resolve() / "images"
        self._venvs = (state_dir / "venvs").resolve()
        end_leftovers(self._venvs)

    def build(
        self,
        context: Path,
        repository: str,
        tag: str,
        build_args: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
        deadline_seconds: float,
    ) -> BuiltImage:
        """Build an image from the build context `context`, and tag it.

        Raises:
            ImageBuildError: If a phase fails. The message contains the last lines of its output.
        """
        shown_paths = {str(context.resolve()): ".", str(self._venvs): "venvs"}
        run = BuildRun(on_line, stop, time.monotonic() + deadline_seconds, shown_paths)
        dockerfile = context / "Dockerfile"
        if not dockerfile.is_file():
            raise ImageBuildError("READ Dockerfile: the build context has no Dockerfile")
        recipe = parse(dockerfile.read_text(), build_args, self._recipe_of)
        base = self.resolve(recipe.base or "")
        what = (
            f"not pulled; nodes run this machine's {python_name()}"
            if base is None
            else "built here, and extended"
        )
        on_line(f"[READ Dockerfile] FROM {recipe.base}: {what}")
        content = read_content(context.resolve(), recipe, build_args, base)
        self._refuse_moved_tag(repository, tag, content.image_digest)
        venv = self._make_venv(content, context.resolve(), run)
        self._make_image(content, recipe, venv, run)
        self._add_tag(repository, tag, content.image_digest, run)
        on_line(f"[DONE] {repository}:{tag} sha256:{content.image_digest}")
        return BuiltImage(f"sha256:{content.image_digest}", dict(recipe.labels))

    def resolve(self, image_uri: str) -> Path | None:
        """Return the folder of …/repository:tag or …/repository@sha256:…, or None if missing."""
        match = _REFERENCE.fullmatch(image_uri)
        if not match:
            return None
        tag = match["tag"] or "latest"
        for repository, known_tag, digest in self.images():
            wanted = digest == f"sha256:{match['digest']}" if match["digest"] else known_tag == tag
            if wanted and repository == match["repository"]:
                return self._images / digest.removeprefix("sha256:")
        return None

    def images(self) -> Sequence[tuple[str, str, str]]:
        """Return the repository, tag and digest of every complete image in the store.

        Raises:
            DamagedFile: If the index is damaged.
        """
        found = read_json(self._images / "index.json", _entries, _INDEX_REMEDY) or []
        return [
            entry
            for entry in found
            if _is_complete(self._images / entry[2].removeprefix("sha256:"))
        ]

    def _recipe_of(self, image_uri: str) -> Recipe | None:
        """Return the part of a stored image's recipe that images based on it inherit, or None."""
        image = self.resolve(image_uri)
        if image is None:
            return None
        record = json.loads((image / "image.json").read_text())
        return Recipe(
            record["base"], record["environment"], record["labels"], folder=record["folder"]
        )

    def _make_venv(self, content: Content, context: Path, run: BuildRun) -> Path:
        """Build a virtual environment at its final path, since its scripts contain the path.

        Once complete.json exists, the environment is complete and can be used by other images.
        """
        venv = self._venvs / content.venv_digest
        # Processes left by a builder that was killed since can hold the lock.
        end_leftovers(self._venvs)
        with build_lock(self._venvs / f"{content.venv_digest}.lock", run) as lock_fd:
            if _is_complete_venv(venv):
                run.on_line(f"[REUSE virtual environment] {content.venv_digest[:12]}")
                return venv
            started_at = time.monotonic()
            make_venv(venv, content, context, run, lock_fd)
            seconds = round(time.monotonic() - started_at, 1)
            record = {"path": str(venv), "python": python_name(), "build_seconds": seconds}
            write_atomically(venv / "complete.json", json.dumps(record))
        return venv

    def _make_image(self, content: Content, recipe: Recipe, venv: Path, run: BuildRun) -> None:
        self._images.mkdir(parents=True, exist_ok=True)
        with build_lock(self._images / "build.lock", run):
            image = self._images / content.image_digest
            if _has_record(image):
                return
            shutil.rmtree(image, ignore_errors=True)  # an image with a damaged record
            temporary = Path(tempfile.mkdtemp(dir=self._images, prefix=".building-"))
            try:
                _write_image(temporary, content, recipe, venv)
                os.chmod(temporary, 0o755)
                os.rename(temporary, image)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        run.on_line(f"[COPY] {len(content.files)} files")

    def _refuse_moved_tag(self, repository: str, tag: str, digest: str) -> None:
        for known_repository, known_tag, known_digest in self.images():
            if (known_repository, known_tag) == (
                repository,
                tag,
            ) and known_digest != f"sha256:{digest}":
                raise ImageBuildError(
                    f"TAG {repository}:{tag}: the tag is immutable and points to {known_digest},"
                    f" but the build produced sha256:{digest}; use a different tag"
                )

    def _add_tag(self, repository: str, tag: str, digest: str, run: BuildRun) -> None:
        with build_lock(self._images / "index.lock", run):
            self._refuse_moved_tag(repository, tag, digest)  # a concurrent build can have set it
            entries = {entry[:2]: entry[2] for entry in self.images()} | {
                (repository, tag): f"sha256:{digest}"
            }
            rows = [
                {"repository": r, "tag": t, "digest": d} for (r, t), d in sorted(entries.items())
            ]
            write_atomically(self._images / "index.json", json.dumps(rows, indent=1))


def _entries(value: Any) -> list[tuple[str, str, str]]:
    """Return the repository, tag and digest in each row.

    Raises:
        KeyError: If a column is missing.
        TypeError: If the shape is wrong.
    """
    return [(str(row["repository"]), str(row["tag"]), str(row["digest"])) for row in value]


def _is_complete(image: Path) -> bool:
    """Return True if an image can be run and extended. If not, it counts as missing."""
    return _has_record(image) and _is_complete_venv(image / "venv")


def _has_record(image: Path) -> bool:
    try:
        record = json.loads((image / "image.json").read_text())
        return set(record) >= _RECORD_FIELDS and isinstance(record["environment"], dict)
    except (OSError, ValueError, TypeError):
        return False


def _is_complete_venv(venv: Path) -> bool:
    """Return True if an environment is complete, was not moved, and still has its Python."""
    try:
        record = json.loads((venv / "complete.json").read_text())
        is_here = bool(record["path"] == str(venv.resolve()))
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return is_here and (venv / "bin" / "python").exists()


def _write_image(folder: Path, content: Content, recipe: Recipe, venv: Path) -> None:
    (folder / "code").mkdir()
    for inherited in ("code", "files"):
        if content.base is not None and (content.base / inherited).is_dir():
            shutil.copytree(content.base / inherited, folder / inherited, dirs_exist_ok=True)
    for name, source in content.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if is_executable(source) else 0o644)
    (folder / "venv").symlink_to(Path("..") / ".." / "venvs" / venv.name)
    record = {
        "digest": f"sha256:{content.image_digest}",
        "environment": recipe.environment,
        "labels": recipe.labels,
        "folder": recipe.folder,
        "base": recipe.base,
        "python": python_name(),
    }
    write_atomically(folder / "image.json", json.dumps(record, indent=1, sort_keys=True))
