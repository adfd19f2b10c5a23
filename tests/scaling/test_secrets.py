"""Names under which a text is not repeated, and texts that are none to repeat."""

import pytest

from scaling.secrets import HIDDEN, hide_in_text, hide_secrets, is_secret_name

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
