"""Configs that cannot be meant end soon, with exit code 2 and a message that names the field."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from nodesweep.cli.main import main
from nodesweep.configs.load import load_config

MAX_CPU_SECONDS = 120  # of a machine however slow; the first command imports
MAX_MESSAGE_CHARACTERS = 10_000


def check(*arguments: str | Path) -> Result:
    """Run a command, which must end soon and show no traceback, whatever its arguments."""
    began = time.process_time()
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert time.process_time() - began < MAX_CPU_SECONDS
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert len(result.output) < MAX_MESSAGE_CHARACTERS
    assert not [character for character in result.output if character < " " and character != "\n"]
    return result


@pytest.fixture
def folder(tmp_path: Path, raw_config: dict[str, Any]) -> Path:
    """A folder with a valid config, bench.yaml, and the files that it names."""
    for name in ("data", "image", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(raw_config))
    return tmp_path


def test_the_config_that_the_others_are_made_of_is_valid(folder: Path) -> None:
    assert check("config", "validate", folder / "bench.yaml").exit_code == 0


EXPECTATION = "dataset.expectations=[{type: TYPE, kwargs: {KWARGS}}]"
DATASET = (
    "name: d, source: data, format: csv, expectations: [{type: expect_column_to_exist, kwargs:"
    " {column: a}}]"
)
FIELDS = [
    (f"dataset={{{DATASET}, min_rows: 5, max_rows: 4}}",
     "dataset: min_rows is 5 and max_rows is 4"),
    ("sweep.min_points=3", "sweep: min_points is 3, but 2 node counts x 1 repeat make 2 points"),
    (f"sweep={{node_counts: {list(range(1, 513))}, repeats: 50}}",
     "25,600 jobs; a sweep may have at most 1,000"),
    ("sweep.repeats=true", "sweep.repeats: Input should be a valid integer, unable to parse"),
    ("sweep.node_counts=[true]", "sweep.node_counts.0: Input should be a valid integer"),
    ("training.learning_rate.value=yes",
     "training.learning_rate.value: Input should be a valid number"),
    ("sweep.budget_usd=true", "sweep.budget_usd: Input should be a valid number"),
    ("sweep.node_counts=[010]", "some YAML parsers read 010 as 8, others as 10"),
    ("sweep.repeats=1:30", "some YAML parsers read 1:30 as a base-60 number"),
    ("training.learning_rate.value=1:30.5", "some YAML parsers read 1:30.5 as a base-60 number"),
    ("sweep.repeats=0x%s" % ("f" * 100_000), "this number has 100002 characters"),
    ("sweep.repeats=1%s" % (":59" * 80_000), "this number has 240001 characters"),
    ("sweep.repeats=%s" % ("9" * 5000), "this number has 5000 characters"),
    ("training.batch.size=%s" % ("9" * 39),
     "training.batch.size: Input should be less than or equal to"),
    ('sweep.repeats=!!int ""', "is not a valid !!int"),
    ("report.title=!!timestamp zz", "is not a valid !!timestamp"),
    ("report.title=!!binary gA==", "the tag !!binary is not supported here"),
    ("dataset.unique_columns=!!set {a, b}", "the tag !!set is not supported here"),
    ('report.title="a\\x1b[31mb"', r"report.title: '\x1b' is a control character"),
    ('report.title="a\\u202eb"', r"report.title: '\u202e' is a control character"),
    ('report.title="a\\nb"', "in YAML, begin a folded text with >-"),
    ('image.uri="registry/a:1\\e[2J"', "image.uri: "),
    ("image.uri=https://registry.example.com/a:1", "image.uri: expected a reference such as"),
    ('training.hyperparameters={"a\\e": 1}', "training.hyperparameters: "),
    ('training.environment.A="a\\0b"', "training.environment: "),
    ('dataset.source="a\\0b"', r"dataset.source: '\x00' is a control character"),
    ("dataset.source=%s" % ("d/" * 3000), "dataset.source: the path has 6000 bytes"),
    ("dataset.source=%s" % ("d" * 300), "dataset.source: a file name in it has 300 bytes"),
    ("dataset.source=%s" % ("ü" * 130), "dataset.source: a file name in it has 260 bytes"),
    ('dataset.source=""', "dataset.source: "),
    ("dataset.source=s3://", "dataset.source: "),
    ("dataset.source=s3:///prefix", "dataset.source: "),
    ("dataset.source=s3://UPPER_case/prefix", "dataset.source: "),
    ("dataset.source=S3://bucket/prefix", "dataset.source: 'S3://bucket/prefix' is a URL"),
    ("dataset.source=file:///x", "dataset.source: 'file:///x' is a URL"),
    ("dataset.source=nowhere", "dataset.source: no directory "),
    ("dataset.source=bench.yaml", "dataset.source: no directory "),
    ("image.context=s3://bucket/context", "image.context: 's3://bucket/context' is a URL"),
    ("image.context=nowhere", "image.context: no directory "),
    ("image.context=file:///x", "image.context: 'file:///x' is a URL"),
    ("training.source_dir=nowhere", "training.source_dir: no directory "),
    ("training.source_dir=s3://bucket/code", "training.source_dir: 's3://bucket/code' is a URL"),
    ('training.source_dir="a\\0b"', "training.source_dir: "),
    ("report.directory=s3://bucket/reports", "report.directory: 's3://bucket/reports' is a URL"),
    ('report.directory="a\\0b"', "report.directory: "),
    ("platform.state_directory=file:///x", "platform.state_directory: 'file:///x' is a URL"),
    ("platform.region=us-east-9",
     "platform.region: no region 'us-east-9'; nearest: us-east-2, us-east-1"),
    ("platform.region=xx-nowhere-1", "platform.region: no region 'xx-nowhere-1'"),
    (EXPECTATION.replace("TYPE", "expect_colum_to_exist"), "nearest: expect_column_to_exist"),
    (EXPECTATION.replace("TYPE", "'a\\e'"), "dataset.expectations.0.type: "),
    (EXPECTATION.replace("TYPE", "../schemas"),
     "dataset.expectations.0.type: no expectation '../schemas'"),
    (
        EXPECTATION.replace("TYPE", "expect_column_to_exist").replace("KWARGS", "colum: x"),
        "0.kwargs: expect_column_to_exist: column is missing; unknown colum; allowed: column",
    ),
    (
        EXPECTATION.replace("TYPE", "expect_column_to_exist")
        .replace("KWARGS", "column: x, severity: info"),
        "0.kwargs: expect_column_to_exist: unknown severity",
    ),
    ("training.metric_definitions.m=%s" % ("(" * 2000 + "x" + ")" * 2000), "is nested too deeply"),
    ("training.metric_definitions.m=(x{99999999999999999999})", "is not a regular expression"),
    ("training.metric_definitions.m=(x{1,4294967296})", "is not a regular expression"),
    ("training.metric_definitions.m=(?<=loss=)(.)",
     "cannot be searched by RE2: invalid perl operator: (?<="),
    ("training.metric_definitions.m=(a)\\1",
     "cannot be searched by RE2: invalid escape sequence: \\1"),
    ("training.metric_definitions.m=((a{1000}){1000})",
     "be searched by RE2: invalid repetition size: {1000}; write it"),
    ("training.hyperparameters%s=1" % (".a" * 60), "at most 50"),
    ("training.hyperparameters%s=1" % (".a" * 20_000), "at most 50"),
    ("\x1b[31m.x=1", r"\x1b[31m"),
    ("sweep.node_counts=[" + ",".join(["1"] * 300_000) + "]", "characters; at most"),
    ("sweep.node_counts=[" + ",".join(["1"] * 5_000) + "]", "sweep.node_counts: "),
    ("sweep.node_counts=[" + ",".join(["x"] * 5_000) + "]", "sweep.node_counts"),
    ("training={" + ", ".join(f"k{number}: 1" for number in range(3_000)) + "}",
     "more problems"),
    (f"report.title={{{'k' * 900}: 1, {'k' * 900}: 2}}", "appears more than once"),
    ("report.title=*%s" % ("a" * 100_000), "undefined alias"),
    ("%s=1" % ("k" * 100_000), "unknown key"),
    ("platform.endpoint_url=http://127.0.0.1:1/\x00", "special characters are not allowed"),
    ('platform.endpoint_url="http://127.0.0.1:1/\\x7f"', "platform.endpoint_url: "),
    ("dataset.max_age_days=1.0e+300", "dataset.max_age_days: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"), FIELDS, ids=[override[:60] for override, _ in FIELDS]
)
def test_what_can_not_be_meant_is_refused_by_field(
    folder: Path, override: str, message: str
) -> None:
    result = check("config", "validate", folder / "bench.yaml", "--set", override)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["plan", "requests", "run"])
@pytest.mark.parametrize("field", ["dataset.source", "image.context", "training.source_dir"])
def test_no_command_that_reads_a_directory_goes_on_without_it(
    folder: Path, command: str, field: str
) -> None:
    result = check(command, folder / "bench.yaml", "--set", f"{field}=nowhere")
    assert (result.exit_code, f"{field}: no directory " in result.output) == (
        2,
        True,
    ), result.output


def test_a_region_of_ones_own_goes_with_an_endpoint_of_ones_own(folder: Path) -> None:
    own = (
        "--set",
        "platform.region=xx-nowhere-1",
        "--set",
        "platform.endpoint_url=http://127.0.0.1:9",
    )
    assert check("config", "validate", folder / "bench.yaml", *own).exit_code == 0


@pytest.mark.parametrize(
    "region", ["us-gov-west-1", "cn-north-1", "eusc-de-east-1", "ap-southeast-6"]
)
def test_a_region_of_any_partition_is_one(folder: Path, region: str) -> None:
    assert (
        check(
            "config", "validate", folder / "bench.yaml", "--set", f"platform.region={region}"
        ).exit_code
        == 0
    )


def test_every_thing_that_is_not_there_is_named_at_once(folder: Path) -> None:
    changes = ("dataset.source=one", "image.context=two", "training.source_dir=three")
    result = check(
        "plan", folder / "bench.yaml", *(part for change in changes for part in ("--set", change))
    )
    assert [line.split(":")[0].strip() for line in result.output.splitlines()[1:]] == [
        "dataset.source",
        "image.context",
        "training.source_dir",
    ]


def test_a_sweep_that_goes_on_needs_no_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "nodesweep.cli.main.resolve_resume_id", lambda sweep, *_: read.append(sweep) or sys.exit(0)
    )
    (folder / "data").rmdir()
    assert (
        check("run", folder / "bench.yaml", "--resume", "local-20261120191500-1a2b3c4d").exit_code
        == 0
    )
    assert read == ["local-20261120191500-1a2b3c4d"], "the config was taken"


@pytest.mark.parametrize("change", ["image.uri=registry/own:1", "dataset.source=s3://bucket"])
def test_what_is_not_read_here_need_not_be_here(folder: Path, change: str) -> None:
    (folder / ("image" if change.startswith("image") else "data")).rmdir()
    assert check("config", "validate", folder / "bench.yaml", "--set", change).exit_code == 0


def test_a_directory_that_leads_to_itself_is_none(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    result = check("config", "validate", folder / "bench.yaml", "--set", "dataset.source=loop")
    assert (result.exit_code, "dataset.source: " in result.output) == (2, True), result.output


def test_a_device_a_pipe_and_a_directory_are_no_configs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", Path("/dev/tty")):
        result = check("config", "validate", path)
        assert (result.exit_code, str(path) in result.output) == (2, True), result.output
    assert check("config", "validate", tmp_path).exit_code == 2


def test_a_file_of_any_size_is_read_to_the_limit_alone(tmp_path: Path) -> None:
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    result = check("config", "validate", tmp_path / "big.yaml")
    assert (result.exit_code, "at most" in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    "path",
    ["\udcff.yaml", "x" * 300, "d/" * 3000, "\x1b[31mred.yaml", "s3://bucket/bench.yaml", ""],
)
@pytest.mark.parametrize(
    "command", [["config", "validate"], ["plan"], ["requests"], ["run"], ["run", "--detach"]]
)
def test_a_path_that_names_no_file_is_a_message(path: str, command: list[str]) -> None:
    assert check(*command, path).exit_code == 2


def test_a_config_in_a_directory_whose_name_is_no_text_is_a_message(folder: Path) -> None:
    odd = folder / "\udcff"
    odd.mkdir()
    (folder / "bench.yaml").rename(odd / "bench.yaml")
    for command in (["config", "validate"], ["plan"], ["requests"], ["run"]):
        result = check(*command, odd / "bench.yaml")
        assert (result.exit_code, "UTF-8" in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "CONFIG", "--resume", "\udcff"],
        ["run", "CONFIG", "--output", "\udcff"],
        ["run", "CONFIG", "--set", "\udcff"],
        ["run", "CONFIG", "--set", "name=\udcff"],
        ["plan", "CONFIG", "--set", "sweep.\udcff.x=1"],
        ["requests", "CONFIG", "--set", "training.environment={\udcff: 1}"],
        ["stop", "\udcff"],
        ["stop", "local-20261120191500-1a2b3c4d", "--config", "\udcff"],
        ["stop", "local-20261120191500-1a2b3c4d", "--output", "\udcff"],
        ["collect", "\udcff"],
        ["collect", "local-20261120191500-1a2b3c4d", "--output", "\udcff"],
        ["report", "\udcff"],
        ["report", "--csv", "\udcff"],
        ["report", "--csv", "TABLE", "--region", "\udcff"],
        ["report", "--csv", "TABLE", "--output", "\udcff"],
        ["compare", "\udcff", "\udcff"],
        ["compare", "a", "b", "--allow", "\udcff"],
        ["compare", "a", "b", "--config", "\udcff"],
        ["history", "\udcff", "--config", "CONFIG"],
        ["config", "init", "--from-stack", "\udcff"],
        ["config", "init", "--from-stack", "nodesweep", "--region", "\udcff"],
        [
            "config",
            "init",
            "--from-stack",
            "nodesweep",
            "--endpoint-url",
            "http://127.0.0.1:9/\udcff",
        ],
        ["config", "\udcff"],
        ["\udcff"],
    ],
    ids=lambda arguments: " ".join(arguments).encode("ascii", "backslashreplace").decode(),
)
def test_half_a_character_on_the_command_line_is_a_message(
    folder: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "table.csv").write_text("nodes,train_seconds\n1,100\n2,50\n")
    given = {"CONFIG": "bench.yaml", "TABLE": "table.csv"}
    result = check(*(given.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2, result.output
    assert result.output.encode()


def test_an_override_of_an_aliased_section_changes_what_it_names_alone(folder: Path) -> None:
    text = (
        (folder / "bench.yaml")
        .read_text()
        .replace("training:", "training:\n  environment: &same {A: '1'}\n  tags: *same")
    )
    (folder / "bench.yaml").write_text(text)
    training = load_config(folder / "bench.yaml", ["training.environment.A='2'"]).training
    assert (training.environment, training.tags) == ({"A": "2"}, {"A": "1"})


NOT_NULL = "expect_column_values_to_not_be_null"
IN_SET = "expect_column_values_to_be_in_set"
MATCHES = "expect_column_values_to_match_regex"
BETWEEN = "expect_column_values_to_be_between"
STRFTIME = "expect_column_values_to_match_strftime_format"
CAN_NOT_BE_MEANT = [
    ("platform.bucket=data--x-s3", "platform.bucket: 'data--x-s3': S3 reserves names"),
    (
        "dataset.source=s3://192.168.0.1/x",
        "dataset.source: '192.168.0.1': an S3 bucket name must not",
    ),
    (
        "training.extra_channels={a: {type: S3, uri: 's3://a..b/c'}}",
        "'a..b': an S3 bucket name must not",
    ),
    (
        "training.extra_channels={a: {type: S3, uri: 's3://b/run-{repeat}'}}",
        "URI contains {repeat};",
    ),
    ("image.uri='Upper/Case'", "image.uri: expected a reference such as"),
    ("image.uri='a:'", "image.uri: expected a reference such as"),
    ("image.uri='a:b:c'", "image.uri: expected a reference such as"),
    ("image.uri='a@sha256:'", "image.uri: expected a reference such as"),
    ("image.uri='a@sha256:12'", "image.uri: expected a reference such as"),
    ("image.base_image='-a'", "image.base_image: expected a reference such as"),
    ("training.environment={A: 'run-{nodes}'}", "variable 'A' contains {nodes}; only values of"),
    ("training.environment={'A{seed}': a}", "variable 'A{seed}' contains {seed}; only values of"),
    ("image.build_args={A: '{repeat}'}", "image.build_args.A: a build argument contains {repeat};"),
    ("training.hyperparameters={'x{seed}': 1}", "hyperparameter 'x{seed}' contains {seed};"),
]
ARGUMENTS = [
    (NOT_NULL, "column: a, mostly: -0.1", "mostly: expected a number from 0 to 1 (got -0.1)"),
    (NOT_NULL, "column: a, mostly: null", "mostly: null checks nothing"),
    (NOT_NULL, "column: 3", "column: expected a non-empty string (got 3)"),
    ("expect_column_pair_values_to_be_equal", "column_A: a, column_B: null",
     "column_B: expected a non-empty string (got None)"),
    (MATCHES, "column: a, regex: 3", "regex: expected a regular expression (got 3)"),
    (MATCHES, "column: a, regex: null", "regex: null checks nothing"),
    ("expect_column_values_to_match_regex_list", "column: a, regex_list: [a, '[']",
     "regex_list: not a regular expression: unterminated character set"),
    ("expect_column_values_to_match_regex_list", "column: a, regex_list: a",
     "regex_list: expected a list (got 'a')"),
    ("expect_column_values_to_match_regex_list", "column: a, regex_list: 3",
     "regex_list: expected a list (got 3)"),
    (IN_SET, "column: a, value_set: null", "value_set: null checks nothing"),
    (IN_SET, "column: a, value_set: 3", "value_set: expected a list (got 3)"),
    (IN_SET, "column: a, value_set: abc", "value_set: expected a list (got 'abc')"),
    (BETWEEN, "column: a, min_value: 2, max_value: 1",
     "min_value is 2 and max_value is 1: no value lies between"),
    (BETWEEN, "column: a, min_value: 1, max_value: 1, strict_min: true", "no value lies between"),
    (BETWEEN, "column: a, min_value: 2025-02-01, max_value: 2025-01-01", "no value lies between"),
    (BETWEEN, "column: a, min_value: '2025-02-01', max_value: '2025-01-01T10:00:00'",
     "no value lies between"),
    (BETWEEN, "column: a", "min_value, max_value: neither is given"),
    (BETWEEN, "column: a, min_value: null, max_value: null", "min_value, max_value: neither"),
    ("expect_table_row_count_to_be_between", "min_value: 9, max_value: 1", "no value lies between"),
    ("expect_compound_columns_to_be_unique", "column_list: [a, 1]",
     "column_list: expected a list of non-empty strings (got ['a', 1])"),
    ("expect_column_values_to_be_of_type", "column: a, type_: null", "type_: expected a string"),
    (STRFTIME, "column: a, strftime_format: '%Y-%q'", "strftime_format: it cannot parse a time"),
    (STRFTIME, "column: a, strftime_format: 'a%'", "strftime_format: it cannot parse a time"),
    (STRFTIME, "column: a, strftime_format: 3", "expected a format such as %Y-%m-%d (got 3)"),
    ("expect_table_row_count_to_equal", "value: null", "value: null checks nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "message"), CAN_NOT_BE_MEANT)
def test_what_no_platform_takes_is_refused_at_once(
    folder: Path, override: str, message: str
) -> None:
    result = check("config", "validate", folder / "bench.yaml", "--set", override)
    assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.parametrize(("kind", "arguments", "message"), ARGUMENTS)
def test_arguments_that_fit_no_data_are_refused_at_once(
    folder: Path, kind: str, arguments: str, message: str
) -> None:
    override = EXPECTATION.replace("TYPE", kind).replace("KWARGS", arguments)
    result = check("config", "validate", folder / "bench.yaml", "--set", override)
    assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    "override",
    [
        "platform.bucket=my.bucket-1",
        "platform.bucket=s3alias",
        "image.uri=localhost:5000/a/b_c--d.e:T_1.2-x@sha256:" + "0" * 64,
        "image.uri='[::1]:5000/a'",
        "image.uri=nodesweep",
        "image.uri=Registry.Example.com/team/a:1",
        "training.environment={A: '${seed}'}",
        "training.environment={A: '{\"a\": 1}', B: '{other}'}",
    ],
)
def test_what_looks_odd_and_is_meant_passes(folder: Path, override: str) -> None:
    result = check("config", "validate", folder / "bench.yaml", "--set", override)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (STRFTIME, "column: a, strftime_format: '%Y-%m-%dT%H:%M:%S%z'"),
        (STRFTIME, "column: a, strftime_format: '%d %b %Y'"),
        (BETWEEN, "column: a, min_value: '2025-01-01', max_value: null, mostly: 1"),
        (BETWEEN, "column: a, min_value: z, max_value: a"),  # by whichever order the column has
        (BETWEEN, "column: a, min_value: 2025-01-01, max_value: 3"),
        (BETWEEN, "column: a, min_value: 3, max_value: 3"),
        (IN_SET, "column: a, value_set: [null, 1]"),
        (IN_SET, "column: a, value_set: {$PARAMETER: x}"),
        ("expect_table_row_count_to_be_between", "min_value: 1"),
    ],
)
def test_odd_arguments_that_fit_some_data_pass(folder: Path, kind: str, arguments: str) -> None:
    override = EXPECTATION.replace("TYPE", kind).replace("KWARGS", arguments)
    result = check("config", "validate", folder / "bench.yaml", "--set", override)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("engine", "exit_code"), [("spark", 0), ("auto", 2), ("pandas", 2)])
def test_expressions_of_spark_are_javas(folder: Path, engine: str, exit_code: int) -> None:
    java = EXPECTATION.replace("TYPE", MATCHES).replace("KWARGS", r"column: a, regex: '\p{L}+'")
    there = ["dataset.source=s3://raw/x", f"dataset.validation={{engine: {engine}}}"]
    options = [part for override in (java, *there) for part in ("--set", override)]
    result = check("config", "validate", folder / "bench.yaml", *options)
    assert result.exit_code == exit_code, result.output
