"""Names under which a text is not repeated, and texts that are none to repeat."""

from collections.abc import Callable
from typing import Any

import pytest

from configs.load import parse_config
from configs.models import BenchmarkConfig
from scaling.secrets import HIDDEN, hide_in_config, hide_in_text, hide_secrets, is_secret_name

SECRET = [
    "HF_TOKEN", "wandb-api-key", "WANDB_API_KEY", "access-key", "AWS_SECRET_ACCESS_KEY", "authToken", "PGPASSWORD",
    "DB_PASS", "db.password", "apikey", "api_key", "clientSecret", "private_key", "MY_PASSPHRASE", "GH_PAT",
    "AUTHORIZATION", "OPENAI_KEY", "WANDB_KEY", "SSH_KEY", "JWT", "COOKIE", "DBPASS", "passwords", "SLACK_WEBHOOK_URL",
    "SENTRY_DSN", "BASIC_AUTH", "DATABASE_PWD", "STRIPE_KEY", "api_keys", "deploy-key",
]  # fmt: skip
OPEN = [
    "tokenizer", "max_tokens", "credentials", "key", "s3_key", "passes-per-epoch", "keypoints", "pixel_28",
    "order_seed", "monkey", "compass", "bypass-cache", "path", "patience", "S3_KEY", "PUBLIC_KEY", "author",
    "report_key", "KEY",
]  # fmt: skip
# Made up, and cut in two so that a scanner of this repository finds nothing. Shapes: see the table of secrets.py.
X = "s3cr3tS3cr3t0123456789abcdefghijklmn"
TEXTS = [
    "AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "IOSFODNN7EXAMPLE", "ghp_" + X, "gho_" + X, "ghs_" + X, "github_pat_" + X,
    "glpat-" + X, "xoxb-" + X, "xapp-" + X, "sk-" + X, "sk-ant-" + X, "sk_live_" + X, "rk_test_" + X, "whsec_" + X,
    "hf_" + X, "npm_" + X, "pypi-" + X, "dckr_pat_" + X, "AIza" + X, "ya29." + X, "GOCSPX-" + X,
    "SG." + X + "." + X, "eyJ" + X + ".eyJ" + X + "." + X, "123456789:" + X[:35],
    "-----BEGIN RSA PRIVATE KEY-----\n" + X + "\n-----END RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n" + X,
    "https://hooks.slack.com/services/" + X, "https://discord.com/api/webhooks/1/" + X,
    "https://acme.webhook.office.com/" + X, "https://host/x?token=" + X, "https://host/x?a=1&api_key=" + X,
    "https://host/x?X-Amz-Signature=" + X, "Bearer " + X, "authorization: Bearer " + X, "Basic " + X + "==",
    "https://me:" + X + "@host/simple", "https://me:p@" + X + "@host/simple", "https://me:p/" + X + "@host/simple",
    "postgresql://" + X + "@db:5432/x", "password=" + X, "DB_PASSWORD: '" + X + "'", '{"token": "' + X + '"}',
    "AccountKey=" + X + ";EndpointSuffix=x", "Cookie: " + X,
]  # fmt: skip
PLAIN = [
    "s3://bucket/a@b", "arn:aws:sagemaker:us-east-1:000000000000:training-job/x", "Speedup 1.8x at 2 nodes",
    "000000000000.dkr.ecr.us-east-1.amazonaws.com/trainer@sha256:" + "a" * 64, "tokenizer=bert; max_tokens=512",
    "https://host:8080/@scope/simple", "step=28; validation_accuracy=0.89", "the bearer of news", "basic training",
    "http://127.0.0.1:4570/bucket/key", "ml.p3.16xlarge",
    "digest sha256:0123456789abcdef", "sweep local-20261122042715-433a4c94",
    "acme-sk-training-data-prod", "sk-training-images-prod", "sk-image-builds-production", "sk-image-builds-2026-11-22",
    "loss_per_token=0.5; step=3", "seconds_per_token: 1.5e-06", '{"loss_per_token": 2.25}', "token=17", "token=nan",
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
    for whole in (text, f"failed with {text} at step 3", f"x\n{text}\ny"):
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
    assert hide_in_text(f"x {text} y") in (f"x {HIDDEN} y", f"x {text.partition('=')[0]}={HIDDEN} y")


def test_looking_for_a_key_takes_time_in_proportion_to_the_text() -> None:
    assert hide_in_text("sk-" * 50_000) == "sk-" * 50_000


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert hide_in_text(text) == text


def test_no_value_of_an_environment_or_of_build_arguments_is_shown() -> None:
    request = {"Environment": {"OMP_NUM_THREADS": "4"}, "HyperParameters": {"lr": "0.1"}}
    assert hide_secrets(request) == {"Environment": {"OMP_NUM_THREADS": HIDDEN}, "HyperParameters": {"lr": "0.1"}}
    config = {"training": {"environment": {"A": "b"}}, "image": {"build_args": {"INDEX": "c"}}}
    assert hide_secrets(config) == {
        "training": {"environment": {"A": HIDDEN}},
        "image": {"build_args": {"INDEX": HIDDEN}},
    }
    build = {"environmentVariablesOverride": [{"name": "A", "value": "b", "type": "PLAINTEXT"}]}
    assert hide_secrets(build) == {
        "environmentVariablesOverride": [{"name": "A", "value": HIDDEN, "type": "PLAINTEXT"}]
    }


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
    expectation = {"type": "expect_x", "kwargs": {"dsn": "s3cr3t", "url": f"postgresql://me:{X}@db/x", "column": "a"}}
    config = make_config(
        dataset={"expectations": [expectation]},
        image={"build_args": {"A": "s3cr3t"}},
        training={
            "environment": {"B": "s3cr3t"},
            "hyperparameters": {"lr": "{learning_rate}", "api-key": "s3cr3t", "index": f"https://me:{X}@host", "n": 3},
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
