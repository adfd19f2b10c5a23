"""The paths and variables of the worker's machine that a deployment's runs may name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.allowed import (
    ENDPOINTS,
    ENVIRONMENT,
    LISTS,
    LOCAL_PLATFORM,
    PATHS,
    check_allowlists,
)
from nodesweep.configs.load import ConfigError
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.presets import config_from_preset, preset_names
from nodesweep.configs.section import LOCAL_PATH, Section, marked_fields
from tests.plain import plain

STRICT = dict.fromkeys(LISTS, "")
OUTSIDE = "/etc/cron.d"
PATHS_OF_SAGEMAKER = sorted({*marked_fields(BenchmarkConfig, LOCAL_PATH)} - {"platform.folder"})
"""A cluster's folder has no preset, and tests/configs/test_slurm.py."""
OF_SLURM = {
    f"platform.{name}"
    for name in ("account", "constraint", "container_image", "gres", "partition", "qos",
                 "reservation", "setup")
}  # fmt: skip
"""Words of sbatch and srun, and commands that a worker with a list of paths refuses."""
NO_PATHS = {
    "name", "image.repository", "image.base_image", "image.uri",  # names of things elsewhere
    "training.entry_point",  # looked for below the code alone
    "training.instance_type", "training.instance_fallbacks", "sweep.instance_types",
    "sweep.variants.set",  # fields of these
    "dataset.validation.instance_type",
    "dataset.expectations.type",  # the catalogues' names
    "dataset.validation.image.base_image", "dataset.validation.image.uri",
    "dataset.unique_columns", "dataset.expectations.kwargs", "report.title",
    "training.checkpoints.local_path", "training.extra_channels.directory_path",  # the job's own
    "training.volume_kms_key_id", "training.output_kms_key_id", "platform.prefix",
    "training.hyperparameters", "training.environment", "training.metric_definitions",
    "training.tags", "image.build_args", "dataset.validation.image.build_args",
    "sweep.concurrency_limit", "platform.region", "platform.role_arn", "platform.bucket",
    "platform.endpoint_url", "training.distribution.custom_mpi_options",
    "training.distribution.partition_file", "training.mlflow.experiment_name",  # the job's
    *OF_SLURM,
}  # fmt: skip
"""Fields of texts that no file of the worker is opened by. A field that is not here has to be a
LocalDirectory or refuse paths.
"""


def texts_of(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return (dotted name, annotation with its constraints) of each field that accepts text."""
    for name, field in section.model_fields.items():
        kinds = kinds_of(field.annotation)
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        for kind in inner:
            yield from texts_of(kind, f"{prefix}{name}.")
        if kinds & {str, Any} and not inner:
            yield f"{prefix}{name}", Annotated[field.annotation, *field.metadata, None]


def kinds_of(annotation: Any) -> set[Any]:
    return {annotation}.union(*map(kinds_of, get_args(annotation)))


def takes(annotation: Any, text: str) -> bool:
    """Return True if the text is a valid value of the field, or a valid entry of its list or
    mapping."""
    for value in (text, (text,), {"a": text}):
        try:
            TypeAdapter(annotation).validate_python(value)
        except ValidationError:
            continue
        return True
    return False


def test_no_field_takes_a_path_that_is_not_compared() -> None:
    """A new field of this kind must not be forgotten."""
    fields = dict(texts_of(BenchmarkConfig))
    paths = {*marked_fields(BenchmarkConfig, LOCAL_PATH)}
    assert paths == {
        "dataset.source", "image.context", "training.source_dir", "report.directory",
        "platform.state_directory", "platform.folder",
    }  # fmt: skip
    may_be_path = {
        name
        for name, annotation in fields.items()
        if any(takes(annotation, path) for path in (OUTSIDE, "../up", "~", "file:///etc"))
    }
    assert may_be_path - paths - NO_PATHS == set()


def test_no_field_but_the_endpoint_takes_a_url_that_is_called() -> None:
    """Other fields of free text accept a URL, but no code calls it."""
    urls = {
        name
        for name, annotation in texts_of(BenchmarkConfig)
        if takes(annotation, "http://evil.example:80")
    }
    free = {
        "report.title", "sweep.concurrency_limit", "dataset.unique_columns", "training.tags",
        "dataset.expectations.type", "dataset.expectations.kwargs", "training.entry_point",
        "training.hyperparameters", "training.environment", "training.metric_definitions",
        "image.build_args", "dataset.validation.image.build_args", "training.instance_type",
        "training.instance_fallbacks", "sweep.instance_types", "sweep.variants.set",
        "dataset.validation.instance_type",
        "training.distribution.custom_mpi_options", "training.distribution.partition_file",
        "training.mlflow.experiment_name", *OF_SLURM,
    }  # fmt: skip
    assert urls - free == {"platform.endpoint_url"}


def refusal(config: BenchmarkConfig, worker: dict[str, str]) -> str:
    try:
        check_allowlists(config, worker)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_names_what_nodesweep_brings(preset: str) -> None:
    endpoint = config_from_preset(preset, {}).platform.endpoint_url
    worker = STRICT | ({LOCAL_PLATFORM["platform.endpoint_url"]: endpoint} if endpoint else {})
    assert refusal(config_from_preset(preset, {}), worker) == ""


def test_strict_lists_refuse_every_path_in_words(snapshot: SnapshotAssertion) -> None:
    folder = "/nowhere/data"  # messages shorten long values
    for field in PATHS_OF_SAGEMAKER:
        config = config_from_preset("local", {field: folder})
        worker = STRICT | {ENDPOINTS: "http://127.0.0.1:4570"}
        [line] = refusal(config, worker).splitlines()[1:]
        assert line.startswith(f"  {field}: got {folder!r}; allowed: ")
        assert f" added to {PATHS} " in line
        assert plain(line, folder=folder, repository=Path(__file__).parents[2]) == snapshot
        assert refusal(config, worker | {PATHS: "/anywhere:/nowhere"}) == ""
        assert refusal(config, {}) == "", "no list, no limit"


@pytest.mark.parametrize("field", PATHS_OF_SAGEMAKER)
def test_no_spelling_leads_out_of_an_allowed_folder(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "inside-not"
    inside.mkdir()
    (outside / "below").mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "to-below").symlink_to(outside / "below")
    monkeypatch.chdir(inside)
    worker = STRICT | {PATHS: str(inside), ENDPOINTS: "http://127.0.0.1:4570"}
    spellings = [
        str(outside), str(inside / ".." / "inside-not"), str(inside / "link"), "/",
        str(inside / "link" / "below"), str(inside / "to-below" / ".."), str(tmp_path),
        f"{inside}/./../{outside.name}/new", "/proc/self/root", "/proc/self/environ",
    ]  # fmt: skip
    if field in ("report.directory", "platform.state_directory"):  # begin where the flow runs
        spellings += ["link", "..", "../inside-not", "reports/../link", "../../../../../etc"]
    for spelling in spellings:
        found = refusal(config_from_preset("local", {field: spelling}), worker)
        assert f"  {field}: got " in found, spelling
    for spelling in (str(inside), f"{inside}/new/deeper", f"{outside}/../inside"):
        assert refusal(config_from_preset("local", {field: spelling}), worker) == ""


def test_a_folder_to_read_is_none_to_write_to() -> None:
    """The folder of the platform, which holds its key, must not be sent either."""
    worker = STRICT | {
        LOCAL_PLATFORM["platform.state_directory"]: "/var/lib/platform",
        LOCAL_PLATFORM["platform.endpoint_url"]: "http://127.0.0.1:4570",
    }
    local = config_from_preset("local", {"platform.state_directory": "/var/lib/platform"})
    assert refusal(local, worker) == ""
    assert local.image.context is not None
    into_code = config_from_preset("local", {"report.directory": local.image.context})
    assert "report.directory: got" in refusal(into_code, worker)
    key_sent = config_from_preset("local", {"training.source_dir": "/var/lib/platform"})
    assert "training.source_dir: got '/var/lib/platform'" in refusal(key_sent, worker)


def test_links_out_of_an_allowed_dataset_are_not_followed(snapshot: SnapshotAssertion) -> None:
    config = config_from_preset("local", {"dataset.follow_links_outside": True})
    worker = {PATHS: ""}
    assert refusal(config, worker) == snapshot
    assert refusal(config, {}) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example", "http://10.0.0.1:4570.evil.example", "https://10.0.0.1:4570",
        "http://10.0.0.1:4571", "http://10.0.0.1", "http://10.0.0.1:4570\\.evil.example",
        "http://127.1:4570", "http://[::ffff:10.0.0.1]:4570", "http://10.0.0.1:04571",
        "http://evil.example/http://10.0.0.1:4570", "http://169.254.169.254",
    ],
)  # fmt: skip
def test_another_endpoint_is_refused(url: str, snapshot: SnapshotAssertion) -> None:
    worker = {ENDPOINTS: "http://10.0.0.1:4570, https://sagemaker.internal"}
    try:
        config = config_from_preset("search_mlp_p3", {"platform.endpoint_url": url})
    except ConfigError:
        return  # is none
    assert refusal(config, worker) == snapshot


def test_a_list_that_is_not_set_limits_nothing() -> None:
    settings = {
        "report.directory": OUTSIDE,
        "platform.endpoint_url": "http://10.0.0.1:1",
        "training.environment": {"A": "${PREFECT_API_AUTH_STRING}"},
    }
    config = config_from_preset("search_mlp_p3", settings)
    check_allowlists(config, {})
    for name in LISTS:
        assert name in refusal(config, {name: ""})


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:4570", "http://10.0.0.1:4570/", "http://10.0.0.1:04570",
        "https://SAGEMAKER.internal", "https://sagemaker.internal:443/path", None,
    ],
)  # fmt: skip
def test_a_listed_endpoint_and_aws_are_allowed(url: str | None) -> None:
    worker = {ENDPOINTS: "http://10.0.0.1:4570, https://sagemaker.internal"}
    config = config_from_preset("search_mlp_p3", {"platform.endpoint_url": url})
    assert refusal(config, worker) == ""


def test_only_a_listed_variable_of_the_worker_is_given_to_a_job(
    snapshot: SnapshotAssertion,
) -> None:
    changes: dict[str, object] = {
        "training.environment.A": "${PREFECT_API_AUTH_STRING}",
        "training.environment.B": "${HF_TOKEN}",
        "training.environment.C": "a text",
    }
    config = config_from_preset("search_mlp_p3", changes)
    [line] = refusal(config, {ENVIRONMENT: "WANDB_KEY, HF_TOKEN"}).splitlines()[1:]
    assert line == snapshot
    assert len(refusal(config, STRICT).splitlines()) == 3
    assert refusal(config, {}) == ""


def test_all_that_is_wrong_is_said_at_once(make_config: Callable[..., BenchmarkConfig]) -> None:
    config = make_config(
        dataset={"source": "/etc"},
        report={"directory": "/etc/cron.d"},
        platform={"endpoint_url": "http://evil.example"},
        training={"environment": {"X": "${HOME}"}},
    )
    lines = refusal(config, STRICT).splitlines()
    named = [line.split(":")[0].strip() for line in lines[1:]]
    assert named == [
        "dataset.source", "image.context", "report.directory", "platform.endpoint_url",
        "training.environment.X",
    ]  # fmt: skip
