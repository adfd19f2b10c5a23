"""Prepare a sweep's inputs: a validated dataset in S3, and an image in ECR."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefect.futures import PrefectFuture

from nodesweep.configs.models import BenchmarkConfig, ImageConfig
from nodesweep.errors import DatasetMissing, ImageBuildFailed, PreflightRefused
from nodesweep.events import event_extra
from nodesweep.flows.stages.building import start_build, stopping_build_on_error
from nodesweep.flows.stages.graph import in_stage
from nodesweep.flows.stages.remote_data import check_unchanged
from nodesweep.flows.stages.validation import Validation, log_engine
from nodesweep.launch.registry import Backend
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.formats import join_words
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.report.sources import at_start_text
from nodesweep.scaling.rules.rule import Requirements
from nodesweep.tasks.calls import (
    describe_remote_dataset,
    find_image,
    find_push_problem,
    keep_data_docs,
    pin_base_images,
    pin_container,
    upload_dataset,
    upload_source,
    validate_files,
)
from nodesweep.tasks.dataset.files import channel_folders, check_keys, scan_directory
from nodesweep.tasks.dataset.naming import notices_of
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, RemoteSource
from nodesweep.tasks.dataset.validation import check_age
from nodesweep.tasks.dataset.validation_report import ValidationReport
from nodesweep.tasks.image.bases import with_container
from nodesweep.tasks.image.find import BuildContext, Image, Images, read_context
from nodesweep.tasks.image.packages import (
    REQUIREMENTS_FILE,
    build_failure_remedy,
    read_requirements,
    write_layer,
)
from nodesweep.tasks.jobs.source import LocalCode, changed_files, code_uri

logger = logging.getLogger("nodesweep.prepare")
_OF_DATASET, _OF_IMAGE = (
    event_extra("message", stage="dataset"),
    event_extra("message", stage="image"),
)


_FILES_NAMED = 3
"""Maximum number of changed files that a message names."""
_VERSIONED = ("nodesweep", "boto3", "prefect", "great-expectations")


@dataclass(frozen=True)
class _UploadedDataset:
    """Location of the dataset for the jobs; `uri` is None if there is no dataset.

    Attributes:
        folders: Folders that become channels.
        used_there: Validated objects of a dataset that is used in place in S3.
        validation: Record of its validation, or None if the config does not configure an engine.
    """

    uri: str | None
    digest: str | None
    folders: tuple[str, ...]
    used_there: RemoteDataset | None = None
    validation: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Preparation:
    """Prepares the inputs of a sweep, or compares them with the inputs of an earlier sweep.

    Attributes:
        config: The benchmark.
        backend: The platform's backend.
        images: Its images.
        code: Its code on this machine.
        source: The place of its dataset; None if it is not used in place in S3.
    """

    config: BenchmarkConfig
    backend: Backend
    images: Images
    code: LocalCode
    source: RemoteSource | None

    def prepare_inputs(self, sweep: str) -> tuple[ResolvedInputs, dict[str, Any]]:
        """Validate the dataset, then upload it while the image builds.

        Nothing is spent on a dataset that violates an expectation.
        """
        of_flow = copy_context()
        # the image stage runs alongside the dataset stage
        return in_stage("image", lambda: self._prepare(sweep, of_flow))

    def _prepare(self, sweep: str, of_flow: Context) -> tuple[ResolvedInputs, dict[str, Any]]:
        """Run the image stage, which begins first and ends last.

        The dataset stage runs in the context `of_flow`, so that Prefect's graph shows it next to
        this stage instead of inside it.
        """
        packages = self._packages()
        layer = packages if packages is not None and packages.at_start is None else None
        existing = self._existing_image()
        context = None if existing else self._read_context()
        found = context and find_image.submit(self.images, context)
        of_image = copy_context()
        with ExitStack() as stack:

            def bring_dataset() -> tuple[
                _UploadedDataset, str | None, Image | PrefectFuture[Image] | None
            ]:
                send = self._validated_dataset(sweep)
                image: Image | PrefectFuture[Image] | None = found.result() if found else None
                if context and image is None:
                    image = building = of_image.run(start_build, self.images, context)
                    stack.enter_context(stopping_build_on_error(building))
                dataset = send()
                code = (
                    upload_source(self.backend, self.code, layer is None)
                    if self.config.training.source_dir
                    else None
                )
                return dataset, code, image

            dataset, source_uri, made = of_flow.run(in_stage, "dataset", bring_dataset)
            image = made.result() if isinstance(made, PrefectFuture) else made
            image = image or Image(str(existing), None, built=False)
        made_of: dict[str, Any] = {}
        if dataset.validation is not None:
            made_of["dataset_validation"] = dataset.validation
        if layer is not None:
            made_of["image_base_uri"] = pin_container(self.images, image.uri)
            image = self._with_packages(made_of["image_base_uri"], layer)
        elif packages is not None:
            made_of["requirements_at_start"] = str(packages.at_start)
        if self.source is not None and dataset.used_there is not None:
            check_unchanged(self.source, dataset.used_there)
        origin = "newly built" if image.built else "existing"
        logger.info("image %s (%s)", image.uri, origin, extra=_OF_IMAGE)
        inputs = ResolvedInputs(sweep, image.uri, dataset.uri, source_uri, dataset.folders)
        return inputs, {
            "image_uri": inputs.image_uri,
            "dataset_uri": inputs.dataset_uri,
            "dataset_digest": dataset.digest,
            "source_uri": inputs.source_uri,
            "region": self.config.platform.region,
            "config_digest": names.config_digest(self.config),
            "order": self.config.sweep.order,
            "order_seed": self.config.sweep.order_seed,
            "versions": {name: version(name) for name in _VERSIONED},
            **made_of,
        }

    def changes_since(self, inputs: ResolvedInputs, provenance: Mapping[str, Any]) -> list[str]:
        """Return a message per change to the code, local data or image since the sweep was started.

        The sweep's jobs keep using the recorded inputs: code, data and images are stored in the
        bucket and in ECR under their digests.
        """
        return [
            text
            for text in (
                self._code_change(inputs, provenance),
                self._data_change(provenance),
                self._image_change(inputs, provenance),
            )
            if text
        ]

    def _code_change(self, inputs: ResolvedInputs, provenance: Mapping[str, Any]) -> str | None:
        training = self.config.training
        if training.source_dir is None or inputs.source_uri is None:
            return None
        has_requirements = "image_base_uri" not in provenance
        try:
            if inputs.source_uri == code_uri(self.backend, self.code, has_requirements):
                return None
            files = changed_files(self.backend, self.code, inputs.source_uri, has_requirements)
        except PreflightRefused as error:
            return error.problems[0]
        more = [f"{len(files) - _FILES_NAMED} more"] if len(files) > _FILES_NAMED else []
        named = f": {join_words([*files[:_FILES_NAMED], *more])}" if files else ""
        return f"training.source_dir: the code in {training.source_dir} has changed{named}"

    def _data_change(self, provenance: Mapping[str, Any]) -> str | None:
        """Return the change to a local dataset, if any; check_same_objects() is for those in S3."""
        section = self.config.dataset
        if section is None or section.is_remote:
            return None
        try:
            digest = scan_directory(section).digest
        except DatasetMissing as error:
            return str(error)
        return (
            None
            if digest == provenance["dataset_digest"]
            else f"dataset.source: the files in {section.source} have changed"
        )

    def _image_change(self, inputs: ResolvedInputs, provenance: Mapping[str, Any]) -> str | None:
        """Return the change to the image below its package layer or, failing that, to the layer."""
        began_with = provenance.get("image_base_uri") or inputs.image_uri
        existing = self._existing_image()
        if existing is not None:
            if "image_base_uri" in provenance:
                existing = pin_container(self.images, existing)
            if existing != began_with:
                return f"image: {existing} is not the sweep's container, {began_with}"
        else:
            context = self._read_context()
            found = find_image(self.images, context)
            if found is None or found.uri != began_with:
                return (
                    f"image.context: {self.config.image.build_context} now builds {context.tag},"
                    f" not the sweep's image {began_with}"
                )
        return self._packages_change(inputs, began_with) if "image_base_uri" in provenance else None

    def _packages_change(self, inputs: ResolvedInputs, base_uri: str) -> str | None:
        packages = self._requirements()
        if packages is not None and packages.at_start is None:
            with tempfile.TemporaryDirectory(prefix="nodesweep-") as scratch:
                context = self._read_layer(base_uri, packages, Path(scratch))
                found = find_image(self.images, context)
            if found is not None and found.uri == inputs.image_uri:
                return None
        return (
            f"training.source_dir: {REQUIREMENTS_FILE} in {self.config.training.source_dir} has"
            f" changed, or ECR no longer has the sweep's image {inputs.image_uri}"
        )

    def _validated_dataset(self, sweep: str) -> Callable[[], _UploadedDataset]:
        """Check the dataset and return a function that uploads it, unless it is already in S3."""
        section = self.config.dataset
        if section is None:
            return lambda: _UploadedDataset(None, None, ())
        if self.source is not None:
            return self._remote_dataset(self.source, sweep)
        dataset = scan_directory(section)
        check_keys(dataset, section, self.backend.store.prefix)
        folders = channel_folders(section, [file.name for file in dataset.files])
        logger.info(
            "dataset %s: %d files, %d bytes", section.name, len(dataset.files), dataset.size_bytes,
            extra=_OF_DATASET,
        )  # fmt: skip
        if section.is_table:
            validation = log_engine(section, dataset.size_bytes)
            report = validate_files(section, [file.path for file in dataset.files])
            _store_validation_report(
                self.backend.store, self.config.report.directory, sweep, report
            )
        else:
            validation = None
            check_age(section, {file.name: file.path.stat().st_mtime for file in dataset.files})

        def send() -> _UploadedDataset:
            result = upload_dataset(self.backend, section, dataset)
            logger.info(
                "dataset in %s: %d bytes sent", result.uri, result.sent_bytes, extra=_OF_DATASET
            )
            return _UploadedDataset(result.uri, result.digest, folders, validation=validation)

        return send

    def _remote_dataset(self, source: RemoteSource, sweep: str) -> Callable[[], _UploadedDataset]:
        section, found = source.section, describe_remote_dataset(source)
        folders = channel_folders(section, map(found.name_of, found.objects))
        logger.info(
            "dataset %s: %d objects, %d bytes, used in place", section.source,
            len(found.objects), found.size_bytes, extra=_OF_DATASET,
        )  # fmt: skip
        for notice in notices_of(section, found.names):
            logger.info("notice: %s", notice, extra=_OF_DATASET)
        validation = None
        if section.is_table:
            on_spark = Validation(self.config, source, self.backend)
            report, validation = on_spark.validate(found, sweep)
            _store_validation_report(
                self.backend.store, self.config.report.directory, sweep, report
            )
        else:
            check_age(section, {item.key: item.modified.timestamp() for item in found.objects})
        return lambda: _UploadedDataset(found.uri, found.digest, folders, found, validation)

    def _existing_image(self) -> str | None:
        """Return the URI of the given image or container, or None if an image must be built."""
        if not self.config.runs_unmodified_container:
            return self.config.image.uri
        container = str(self._with_container().uri)
        return pin_container(self.images, container)

    def _with_container(self) -> ImageConfig:
        image = with_container(
            self.config, self.config.node_type(self.config.training.instance_type)
        )
        if self.config.image.framework is not None:
            logger.info(
                "container for PyTorch %s: %s",
                self.config.image.framework.version,
                image.uri or image.base_image,
                extra=_OF_IMAGE,
            )
        return image

    def _read_context(self) -> BuildContext:
        """Return the build context, with base images pinned by digest if known."""
        image = self._with_container()
        pinned = pin_base_images(self.images, image.all_build_args)
        return read_context(image, pinned, self.config.own_folders)

    def _requirements(self) -> Requirements | None:
        return read_requirements(self.config.training, self.config.platform.fixed_image)

    def _packages(self) -> Requirements | None:
        """Return the code's requirements; log the reason if they cannot become an image layer.

        An unmodified container or an existing image does not need the ECR repository
        image.repository; a layer on top of it does.
        """
        packages = self._requirements()
        if packages is None:
            return None
        needs_repository = (
            self.config.image.uri is not None or self.config.runs_unmodified_container
        )
        if (
            packages.at_start is None
            and needs_repository
            and not self.config.platform.create_missing
        ):
            packages = replace(packages, at_start=find_push_problem(self.images))
        if packages.at_start is not None:
            logger.warning("%s", at_start_text(packages.at_start), extra=_OF_IMAGE)
        return packages

    def _with_packages(self, base_uri: str, packages: Requirements) -> Image:
        """Return the image with the package layer, found in ECR or built."""
        with tempfile.TemporaryDirectory(prefix="nodesweep-") as scratch:
            context = self._read_layer(base_uri, packages, Path(scratch))
            if found := find_image(self.images, context):
                return found
            logger.info(
                "installing the packages of %s in a layer on top of %s (built once)",
                packages.path, base_uri,
                extra=_OF_IMAGE,
            )  # fmt: skip
            building = start_build(self.images, context)
            try:
                with stopping_build_on_error(building):
                    return building.result()
            except ImageBuildFailed as error:
                raise ImageBuildFailed(
                    f"{packages.path} can't be installed on {base_uri}: "
                    f"{build_failure_remedy(str(error))}"
                    f"{error}"
                ) from error

    def _read_layer(self, base_uri: str, packages: Requirements, folder: Path) -> BuildContext:
        return read_context(write_layer(packages, base_uri, self.config.image, folder))


def _store_validation_report(
    store: Store, reports: str, sweep: str, report: ValidationReport
) -> None:
    """Store the validation report, whether or not the dataset passed.

    Raises:
        ValidationFailed: The dataset failed.
    """
    keep_data_docs(store, sweep, report, Path(reports) / sweep)
    report.raise_if_failed()
    logger.info(
        "dataset valid: %d rows in %d files", report.rows, len(report.files), extra=_OF_DATASET
    )
