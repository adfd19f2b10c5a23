"""Marks on fields: which fields of a config leave a measurement unchanged, and which a comparison
ignores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.load import ConfigError, load_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import NOT_COMPARED, NOT_MEASURED, Mark, Section, marked_fields
from nodesweep.configs.strict_yaml import parse_yaml
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling.names import config_digest

CONFIG_PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
HEAVY = Mark("for these tests")


class Inner(Section):
    plain: int = 1
    heavy: Annotated[int, HEAVY] = 2


class Outer(Section):
    one: Inner | None = None
    whole: Annotated[Inner, HEAVY] = Inner()
    number: Annotated[int | None, HEAVY] = None


def test_a_mark_is_found_in_inner_sections_and_a_marked_section_stands_for_its_fields() -> None:
    assert sorted(marked_fields(Outer, HEAVY)) == ["number", "one.heavy", "whole"]
    assert list(marked_fields(Outer, NOT_MEASURED)) == []


def sections(of: type[Section] = Section) -> Iterator[type[Section]]:
    for section in of.__subclasses__():
        yield from (section, *sections(section))


def values(annotation: Any) -> Iterator[Any]:
    """Yield the values of Literal types in a field's annotation."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from values(part)


WORDS = [
    pytest.param(section, name, word, id=f"{section.__name__}.{name}={word}")
    for section in sections()
    if section.__module__.startswith("nodesweep.")
    for name, field in section.model_fields.items()
    for word in values(field.annotation)
    if isinstance(word, str) and isinstance(parse_yaml(word, ""), bool)
]


class Choice(Section):
    answer: Literal["yes", "no"] | None = None
    switch: bool | Literal["off"] = True
    plain: Literal["auto"] = "auto"


@pytest.mark.parametrize(
    "section, name, word",
    [*WORDS, (Choice, "answer", "yes"), (Choice, "answer", "no"), (Choice, "answer", None)],
)
def test_an_allowed_word_that_yaml_reads_as_a_boolean_needs_no_quotes(
    section: type[Section], name: str, word: str | None
) -> None:
    wrong = set()
    try:
        parsed = section.model_validate(parse_yaml(f"{name}: {word or 'null'}", ""))
        assert getattr(parsed, name) == word
    except ValidationError as error:  # other fields of the section are required
        wrong = {problem["loc"][0] for problem in error.errors()}
    assert name not in wrong


def test_the_documented_measure_off_is_among_these_words_and_can_be_set(
    tmp_path: Path, raw_config: dict[str, Any]
) -> None:
    assert "TrainingConfig.measure=off" in [word.id for word in WORDS]
    path = tmp_path / "bench.yaml"
    path.write_text(json.dumps(raw_config))
    assert load_config(path, ["training.measure=off"]).training.measure == "off"


def test_other_booleans_stay_booleans() -> None:
    assert Choice.model_validate({"switch": False}).switch is False
    with pytest.raises(ValidationError):
        Choice.model_validate({"plain": False})


def test_docs_list_what_a_resume_may_change() -> None:
    """Every other field decides a sweep's ID."""
    page = CONFIG_PAGE.read_text(encoding="utf-8")
    _, found, text = page.partition("## Resuming with a different config")
    listed = {
        name.rpartition(".")[2]
        for item in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
        for name in re.findall(r"`([a-z_.]+)`", item.replace(" except its `queue`", ""))
    }
    fields = marked_fields(BenchmarkConfig, NOT_MEASURED)
    assert found and listed == {
        "batch" if ".batch." in name else name.rpartition(".")[2]
        for name in fields
        if name != "platform.launcher"  # its only other value measures on another platform
    }


def test_what_may_differ_in_a_comparison() -> None:
    assert set(marked_fields(TrainingConfig, NOT_COMPARED)) == {
        *(
            "batch.policy",
            "instance_type",
            "learning_rate.rule",
            "max_runtime_seconds",
            "metric_definitions",
        ),
        *("instance_fallbacks", "seed", "source_dir", "training_plan_arn", "training_plan_arns"),
    }


def test_a_config_without_a_queue_keeps_its_sweep_id(
    benchmark_config: BenchmarkConfig, make_config: Callable[..., BenchmarkConfig]
) -> None:
    assert "batch" not in benchmark_config.model_dump(mode="json")["platform"]
    queue, other = ({"queue": "a"}, {"queue": "b"})
    shared = {**queue, "share_identifier": "team", "scheduling_priority": 3}
    digests = [
        config_digest(make_config(platform={"batch": batch})) for batch in (queue, other, shared)
    ]
    assert digests[0] == digests[2] != digests[1]
    assert config_digest(benchmark_config) not in digests


@pytest.mark.parametrize(
    "changes",
    [
        {"platform": {"batch": {"queue": "a b"}}},
        {"platform": {"batch": {}}},
        {"platform": {"batch": {"queue": "a", "scheduling_priority": 10_000}}},
        {"platform": {"batch": {"queue": "a", "attempt_timeout_seconds": 59}}},
        {"platform": {"batch": {"queue": "a"}}, "training": {"keep_alive_seconds": 600}},
        {"platform": {"batch": {"queue": "a", "attempt_timeout_seconds": 60}}},
    ],
    ids=["name", "no queue", "priority", "timeout", "warm pool", "timeout within runtime"],
)
def test_a_queue_that_can_not_be_used_is_refused_by_field(
    changes: dict[str, Any],
    make_config: Callable[..., BenchmarkConfig],
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_config(**changes)
    assert str(refused.value) == snapshot
