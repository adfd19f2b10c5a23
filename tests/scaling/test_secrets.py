"""Names under which a text is not repeated."""

import pytest

from scaling.secrets import HIDDEN, hide_secrets, is_secret_name

SECRET = [
    "HF_TOKEN", "wandb-api-key", "WANDB_API_KEY", "access-key", "AWS_SECRET_ACCESS_KEY", "authToken", "PGPASSWORD",
    "DB_PASS", "db.password", "apikey", "api_key", "clientSecret", "private_key", "MY_PASSPHRASE", "GH_PAT",
]  # fmt: skip
OPEN = [
    "tokenizer", "max_tokens", "credentials", "key", "s3_key", "passes-per-epoch", "keypoints", "pixel_28",
    "order_seed", "monkey", "compass", "bypass-cache", "path", "patience",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_text_under_a_secrets_name_is_hidden(name: str) -> None:
    assert hide_secrets({"a": [{name: "s3cr3t"}]}) == {"a": [{name: HIDDEN}]}


@pytest.mark.parametrize("name", OPEN)
def test_other_names_are_left_alone(name: str) -> None:
    assert not is_secret_name(name)


def test_numbers_and_null_stay() -> None:
    assert hide_secrets({"token": None, "pass": 3, "n": (1, 2.5, True)}) == {
        "token": None,
        "pass": 3,
        "n": [1, 2.5, True],
    }


def test_the_user_part_of_a_url_is_hidden_wherever_it_stands() -> None:
    assert hide_secrets({"index": "https://me:s3cr3t@host/simple x"}) == {"index": f"https://{HIDDEN}@host/simple x"}
    assert hide_secrets("s3://bucket/a@b") == "s3://bucket/a@b"
