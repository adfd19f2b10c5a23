"""Names whose values are not repeated, and texts that are not secret."""

import base64
import json
import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.secrets import (
    HIDDEN,
    MAX_KEY_LINES,
    LogHider,
    hide_in_config,
    hide_in_request,
    hide_in_text,
    hide_secrets,
    is_secret_name,
    remember_secrets,
    secrets_in,
    secrets_of,
    secrets_of_job,
)
from tests.secret_spellings import SECRET, TEXTS, X

AT = "@"
"""Apart, so that a scanner of this repository finds no credentials in a made-up URL."""
OPEN = [
    "tokenizer", "max_tokens", "key", "s3_key", "passes-per-epoch", "keypoints",
    "pixel_28", "order_seed", "monkey", "compass", "bypass-cache", "path", "patience", "S3_KEY",
    "PUBLIC_KEY", "author", "report_key", "KEY",
]  # fmt: skip
PLAIN = [
    "s3://bucket/a@b", "arn:aws:sagemaker:us-east-1:000000000000:training-job/x",
    "Speedup 1.8x at 2 nodes",
    "000000000000.dkr.ecr.us-east-1.amazonaws.com/trainer@sha256:" + "a" * 64,
    "tokenizer=bert; max_tokens=512", "https://host:8080/@scope/simple",
    "step=28; validation_accuracy=0.89", "the bearer of news", "basic training",
    "http://127.0.0.1:4570/bucket/key", "ml.p3.16xlarge", "digest sha256:0123456789abcdef",
    "sweep local-20261122042715-433a4c94", "acme-sk-training-data-prod", "sk-training-images-prod",
    "sk-image-builds-production", "sk-image-builds-2026-11-22", "loss_per_token=0.5; step=3",
    "seconds_per_token: 1.5e-06", '{"loss_per_token": 2.25}', "token=17", "token=nan",
    "loss-per-token=-.5,",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_text_under_a_secrets_name_is_hidden(name: str) -> None:
    assert hide_secrets({"a": [{name: "s3cr3t"}]}) == {"a": [{name: HIDDEN}]}
    assert hide_secrets({name: ["s3cr3t", {"x": "s3cr3t"}]}) == {name: [HIDDEN, {"x": HIDDEN}]}


@pytest.mark.parametrize("name", OPEN)
def test_other_names_are_left_alone(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_is_known_by_its_shape_wherever_it_stands(text: str) -> None:
    assert len(TEXTS) >= 40
    for whole in (
        text,
        f"failed with {text} at step 3",
        f"x\n{text}\ny",
        json.dumps(f"x\n{text}\ny"),
        repr([f"\t{text}"]),
    ):
        shown = hide_in_text(whole)
        assert X[:20] not in shown and "IOSFODNN" not in shown and HIDDEN in shown
        assert hide_in_text(shown) == shown, "hiding twice is hiding once"


@pytest.mark.parametrize(
    "text",
    [
        "sk-" + "aB3d" * 12,
        "sk-proj-" + "aB-3_dE" * 20,
        "sk-ant-api03-" + "aB-3_dE" * 13 + "AA",
        "sk-svcacct-" + "q7" * 20,
        "token=1234567890123456",
        "password=0.5",
        "token=0.5abc",
    ],
)
def test_keys_and_long_numbers_are_hidden_whole(text: str) -> None:
    assert hide_in_text(f"x {text} y") in (
        f"x {HIDDEN} y",
        f"x {text.partition('=')[0]}={HIDDEN} y",
    )


@pytest.mark.parametrize(
    "part",
    [
        "sk-",
        "://",
        "://a:b/",
        "--token ",
        "a.",
        "a=:",
        "x ",
        "[",
        "--a --b ",
        'lr="',
        "-----BEGIN ",
    ],
)
def test_looking_for_secrets_takes_time_in_proportion_to_the_text(part: str) -> None:
    """With 200,000 characters, an algorithm of quadratic time would never end."""
    text = part * (200_000 // len(part))
    assert hide_in_text(text) == text


@pytest.mark.parametrize("part", ["token=", "a@://", 'api_key="', "api_key=[", f"://u:p{AT}"])
def test_looking_for_many_secrets_too(part: str) -> None:
    assert HIDDEN in hide_in_text(part * (200_000 // len(part)))


def test_a_password_of_the_second_url_in_a_word_is_hidden_too() -> None:
    assert hide_in_text(f"a://host:80/x,b://u:p{AT}h/y") == f"a://host:80/x,b://{HIDDEN}{AT}h/y"
    shown = f"a://{HIDDEN}{AT}h,b://{HIDDEN}{AT}i"
    assert hide_in_text(f"a://u:p{AT}h,b://v:q{AT}i") == shown


VALUE = "Tr0ub4dor & 3/über"
FORMS = [
    VALUE, f"x{VALUE}y", json.dumps(VALUE), json.dumps({"a": json.dumps(VALUE)}), repr([VALUE]),
    quote(VALUE), quote(VALUE, safe=""), base64.b64encode(VALUE.encode()).decode(),
    base64.urlsafe_b64encode(VALUE.encode()).decode(), f"echo {shlex.quote(VALUE)}",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_known_secret_is_hidden_however_it_is_printed(form: str) -> None:
    assert hide_in_text(form) == form or "%" in form, "no shape or name gives it away"
    remember_secrets([VALUE])
    for text in (form, f"step 3: {form}, done"):
        shown = hide_in_text(text)
        assert HIDDEN in shown and "ub4dor" not in shown and form.strip("\"'[]") not in shown
    assert LogHider().hide([form]) == [hide_in_text(form)]
    remember_secrets([VALUE])  # once more changes nothing
    assert "ub4dor" not in str(hide_secrets({"a": [form]}))


def test_a_known_secret_in_hexadecimal_or_cut_in_two_is_not_hidden() -> None:
    """docs/security.md warns of this."""
    remember_secrets([VALUE])
    for text in (VALUE.encode().hex(), f"{VALUE[:9]} {VALUE[9:]}"):
        assert hide_in_text(text) == text


def test_each_line_of_a_known_secret_is_hidden() -> None:
    remember_secrets(["first-line-of-it\nsecond-line-of-it"])
    shown = LogHider().hide(["first-line-of-it", "x second-line-of-it"])
    assert shown == [HIDDEN, f"x {HIDDEN}"]


def test_a_short_known_secret_hides_no_part_of_a_word_and_three_characters_hide_nothing() -> None:
    remember_secrets(["rate", "lr1"])
    assert hide_in_text("rate=rate, lr1 iterate") == f"{HIDDEN}={HIDDEN}, lr1 iterate"


def test_the_secrets_of_a_config_are_those_under_secret_names_and_random_ones_of_closed_sections(
    make_config: Callable[..., BenchmarkConfig],
) -> None:
    config = make_config(
        training={
            "hyperparameters": {"api_key": "plain-words", "lr": "cosine", "token": 3},
            "environment": {
                "HF_TOKEN": "${HF_TOKEN}",
                "WANDB_KEY": "wandb-words",
                "ENTITY": "team",
                "SESSION": "a1b2c3d4e5f6",
                "ELEVEN": "z1b2c3d4e5f",
                "LETTERS": "zbcdefghijklmno",
                "DATA_1": "/opt/ml/input/data1",
                "NCCL_TOPOLOGY": "a1b2c3d4e5f6g7h8",
            },
        },
        image={"context": "image", "build_args": {"PIP_PASSWORD": "of-the-index"}},
        dataset={
            "source": "s3://digits/all",
            "validation": {
                "engine": "spark",
                "instance_type": "ml.m5.xlarge",
                "image": {"build_args": {"SPARK_PASSWORD": "of-spark"}},
            },
        },
    )
    assert secrets_of(make_config()) == []
    assert sorted(secrets_of(config)) == [
        "a1b2c3d4e5f6", "of-spark", "of-the-index", "plain-words", "wandb-words",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://me:" + "pa55word" + "@host/x", ["pa55word"]),
        ("postgresql://me:" + "p/4%40ss" + "@db:5432/x", ["p/4%40ss", "p/4@ss"]),
        ("https://" + "t0kenOfTheIndex" + "@host/simple", ["t0kenOfTheIndex"]),
        ("postgresql://me:" + "p/4ss" + "@db/x@y", ["p/4ss", "p/4ss@db/x"]),
        ("https://me@host:8080/x@y", []),
        ("http://host:8080/x@y", []),
        ("s3://bucket/me:them@x", []),
    ],
)
def test_the_password_in_a_url_is_known_under_any_name(url: str, secrets: list[str]) -> None:
    assert sorted(secrets_in({"tracking": url})) == sorted(secrets)


def test_what_a_described_job_was_given_is_known() -> None:
    """A hyperparameter in a description is JSON."""
    hyperparameters = {"api_key": '"plain-words"', "odd-token": "no JSON", "lr": "0.1"}
    environment = {"SESSION": "a1b2c3d4e5f6g7", "DB_PASSWORD": "horse", "ENTITY": "team"}
    known = sorted(secrets_of_job(hyperparameters, environment))
    assert known == ["a1b2c3d4e5f6g7", "horse", "no JSON", "plain-words"]
    assert secrets_of_job({}, {}) == []


@pytest.mark.parametrize(
    "spell", [quote_plus, lambda text: repr(text.encode()), lambda text: repr([text.encode()])]
)
def test_a_known_secret_is_hidden_as_a_form_and_as_bytes_too(spell: Callable[[str], str]) -> None:
    secret = "Tr0ub4dor & 3/\u00fcber"
    remember_secrets([secret])
    shown = hide_in_text(f"x {spell(secret)} y")
    assert HIDDEN in shown and "ub4dor" not in shown


MATERIAL = [X[:30] + str(place % 10) * 34 for place in range(20)]
KINDS = ["RSA ", "", "EC ", "OPENSSH ", "ENCRYPTED ", "PGP "]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("portion", [1, 2, 7, 100])
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "2026-11-22 10:00:00 INFO "])
def test_a_private_key_is_hidden_from_its_first_to_its_last_line_however_the_lines_come(
    kind: str, portion: int, prefix: str
) -> None:
    block = " BLOCK" if kind.startswith("PGP") else ""
    key = [
        f"-----BEGIN {kind}PRIVATE KEY{block}-----",
        "",
        *MATERIAL,
        f"-----END {kind}PRIVATE KEY{block}-----",
    ]
    lines = ["before", *(prefix + line for line in key), "after -- Speedup 1.8x"]
    hider, shown = LogHider(), []
    for place in range(0, len(lines), portion):
        shown += hider.hide(lines[place : place + portion])
    assert (shown[0], shown[-1], len(shown)) == ("before", "after -- Speedup 1.8x", len(lines))
    assert not any(X[:8] in line or "KEY" in line for line in shown)
    assert all(HIDDEN in line for line in shown[1:-1])


def test_lines_of_a_key_whose_first_line_was_not_read_are_hidden_too(
    snapshot: SnapshotAssertion,
) -> None:
    shown = LogHider().hide([*MATERIAL, "-----END PRIVATE KEY-----", "after"])
    assert shown[:-1] == [HIDDEN] * 21 and shown[-1] == "after"
    reason = (
        f"AlgorithmError: exit code 1.\n{MATERIAL[0]}\n{MATERIAL[1]}\n-----END PRIVATE"
        " KEY-----\nboom"
    )
    assert hide_in_text(reason) == snapshot


def test_a_key_that_never_ends_hides_no_more_than_a_key_has() -> None:
    shown = LogHider().hide(
        ["-----BEGIN PRIVATE KEY-----", *["step"] * MAX_KEY_LINES, "train_loss=0.5"]
    )
    assert (
        shown[: MAX_KEY_LINES + 1] == [HIDDEN] * (MAX_KEY_LINES + 1)
        and shown[-1] == "train_loss=0.5"
    )


def test_keys_of_several_texts_in_one_line_leave_what_stands_between() -> None:
    key = f"-----BEGIN PRIVATE KEY-----{X}-----END PRIVATE KEY-----"
    assert hide_in_text(f"a {key} b {key} c") == f"a {HIDDEN} b {HIDDEN} c"
    assert LogHider().hide([f"a {key} b -----BEGIN PRIVATE KEY-----{X}", X,
                            f"{X}-----END PRIVATE KEY----- c"]) == [
        f"a {HIDDEN} b {HIDDEN}", HIDDEN, f"{HIDDEN} c",
    ]  # fmt: skip


def test_each_log_has_its_own_keys() -> None:
    one, other = LogHider(), LogHider()
    one.hide(["-----BEGIN PRIVATE KEY-----"])
    assert (one.hide(["x"]), other.hide(["x"])) == ([HIDDEN], ["x"])


@pytest.mark.parametrize("text", PLAIN)
def test_lines_without_a_secret_are_shown_in_a_log(text: str) -> None:
    assert LogHider().hide([text]) == [text]


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert hide_in_text(text) == text


def test_no_value_of_an_environment_or_of_build_arguments_is_shown() -> None:
    request = {"Environment": {"OMP_NUM_THREADS": "4"}, "HyperParameters": {"lr": "0.1"}}
    assert hide_secrets(request) == {
        "Environment": {"OMP_NUM_THREADS": HIDDEN},
        "HyperParameters": {"lr": "0.1"},
    }
    config = {"training": {"environment": {"A": "b"}}, "image": {"build_args": {"INDEX": "c"}}}
    assert hide_secrets(config) == {
        "training": {"environment": {"A": HIDDEN}},
        "image": {"build_args": {"INDEX": HIDDEN}},
    }
    build = {"environmentVariablesOverride": [{"name": "A", "value": "b", "type": "PLAINTEXT"}]}
    assert hide_secrets(build) == {
        "environmentVariablesOverride": [{"name": "A", "value": HIDDEN, "type": "PLAINTEXT"}]
    }


def test_a_request_is_shown_as_it_is_sent_but_for_its_secrets() -> None:
    request = {
        "Environment": {
            "FI_PROVIDER": "efa", "SAGEMAKER_PROGRAM": "train.py", "HF_TOKEN": "s3cr3t",
            "INDEX": f"https://me:s3cr3t{AT}host/simple", "WANDB_API_KEY": "${WANDB}",
        },
        "HyperParameters": {"lr": "0.1", "api-key": '"s3cr3t"'},
        "Tags": [{"Key": "owner", "Value": "vision"}],
    }  # fmt: skip
    shown, masked = hide_in_request(request, ["WANDB_API_KEY"])
    assert shown == {
        "Environment": {
            "FI_PROVIDER": "efa", "SAGEMAKER_PROGRAM": "train.py", "HF_TOKEN": HIDDEN,
            "INDEX": f"https://{HIDDEN}@host/simple", "WANDB_API_KEY": "${WANDB}",
        },
        "HyperParameters": {"lr": "0.1", "api-key": HIDDEN},
        "Tags": [{"Key": "owner", "Value": "vision"}],
    }  # fmt: skip
    assert masked == ("Environment.HF_TOKEN", "Environment.INDEX", "HyperParameters.api-key")
    assert list(shown) == list(request)


def test_numbers_and_null_stay() -> None:
    assert hide_secrets({"token": None, "pass": 3, "n": (1, 2.5, True)}) == {
        "token": None,
        "pass": 3,
        "n": [1, 2.5, True],
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"platform": {"bucket": "acme-sk-training-data-prod"}},
        {"platform": {"bucket": "sk-" + "a1" * 15}},
        {"image": {"repository": "sk-training-images-prod"}},
        {"image": {"codebuild_project": "sk-image-builds-production"}},
        {"training": {"tags": {"auth": "x", "deploy-key": "a", "CostCenter": "token:1"}}},
        {"training": {"extra_channels": {"auth": {"type": "S3", "uri": "s3://bucket/token=x"}}}},
        {"training": {"metric_definitions": {"loss_per_token": "token=([0-9.]+)(?:;|$)"}}},
        {"training": {"metric_definitions": {"auth": "password: ([0-9.]+)"}}},
    ],
)
def test_a_recorded_config_is_read_back_as_it_was(
    make_config: Callable[..., BenchmarkConfig], changes: dict[str, Any]
) -> None:
    config = make_config(**changes)
    assert parse_config(hide_in_config(config), origin="a record") == config


def test_of_a_recorded_config_what_only_the_program_reads_is_hidden(
    make_config: Callable[..., BenchmarkConfig],
) -> None:
    arguments = {"dsn": "s3cr3t", "url": f"postgresql://me:{X}@db/x", "column": "a"}
    expectation = {"type": "expect_column_values_to_match_json_schema", "kwargs": arguments}
    config = make_config(
        dataset={"expectations": [expectation]},
        image={"build_args": {"A": "s3cr3t"}},
        training={
            "environment": {"B": "s3cr3t"},
            "hyperparameters": {
                "lr": "{learning_rate}",
                "api-key": "s3cr3t",
                "index": f"https://me:{X}@host",
                "n": 3,
            },
        },
    )
    record = hide_in_config(config)
    assert "s3cr3t" not in str(record)
    assert record["training"]["hyperparameters"] == {
        "lr": "{learning_rate}",
        "api-key": HIDDEN,
        "index": f"https://{HIDDEN}@host",
        "n": 3,
    }
    assert record["dataset"]["expectations"][0]["kwargs"]["column"] == "a"
    assert parse_config(record, origin="a record").sweep == config.sweep


def test_a_config_without_a_dataset_has_none_to_hide(make_config):
    config = make_config(dataset=None)
    assert parse_config(hide_in_config(config), origin="a record") == config
