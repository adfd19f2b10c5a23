from __future__ import annotations

import pytest

from nodesweep.configs.url_users import hide_url_users, url_users

AT = "@"  # a URL with a password in one piece would be a finding of the secret scan


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (f"https://me:secret{AT}host:80/x", ["me:secret"]),
        (f"https://token{AT}host", ["token"]),
        (f"db://me:p/4ss{AT}host/x", ["me:p/4ss"]),
        (f"db://me:p{AT}ss{AT}host/x{AT}y", [f"me:p{AT}ss"]),
        (f"https://me:8080{AT}host", ["me:8080"]),
        (f"https://host:8080/{AT}scope/simple", []),
        (f"s3://bucket/me:them{AT}x", []),
        (f"a://host:80/x,b://u:p{AT}h/y", ["u:p"]),
        (f"a://u:p{AT}h,b://v:q{AT}i/y and c://w{AT}j", ["u:p", "v:q", "w"]),
        (f"a://b://u:p{AT}h", ["u:p"]),
        (f"me:secret{AT}host", []),
        ("://", []),
    ],
)
def test_every_user_is_found(text: str, users: list[str]) -> None:
    assert [text[start:end] for start, end in url_users(text)] == users
    shown = text
    for user in users:
        shown = shown.replace(f"//{user}{AT}", f"//…{AT}")
    assert hide_url_users(text, "…") == shown


@pytest.mark.parametrize("part", ["://", f"a{AT}://", f"://u:p{AT}", "://a:b/"])
def test_a_long_text_takes_time_in_proportion(part: str) -> None:
    hide_url_users(part * (1_000_000 // len(part)) + AT, "…")
