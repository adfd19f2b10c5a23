from __future__ import annotations

from typing import Any

import pytest

from tests.infra.aws.iam_policy import (
    Access,
    Grant,
    grants_of,
    grants_used,
    matches,
    refused,
    unused,
)


def policy(**members: Any) -> list[dict[str, Any]]:
    statement = {
        "Sid": "S",
        "Effect": "Allow",
        "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::b/p/*",
        **members,
    }
    return [{"Statement": [statement]}]


GET = Access("s3:GetObject", "arn:aws:s3:::b/p/a/b")


def test_statement_allows_its_action_on_its_resource() -> None:
    assert grants_used(policy(), GET) == {Grant("S", "s3:GetObject", "arn:aws:s3:::b/p/*")}
    assert grants_used(policy(Action=["S3:getobject"]), GET)
    assert not grants_used(policy(Action="s3:PutObject"), GET)
    assert not grants_used(policy(Resource="arn:aws:s3:::b/q/*"), GET)


def test_deny_wins() -> None:
    denied = (
        policy()[0]["Statement"]
        + policy(Effect="Deny", Action="s3:*", Resource="*")[0]["Statement"]
    )
    assert not grants_used([{"Statement": denied}], GET)


@pytest.mark.parametrize(
    ("condition", "context", "allowed"),
    [
        ({"StringEquals": {"k": "a"}}, {"k": "a"}, True),
        ({"StringEquals": {"k": ["b", "a"]}}, {"k": "a"}, True),
        ({"StringEquals": {"k": "a*"}}, {"k": "ab"}, False),
        ({"StringLike": {"k": "a*"}}, {"k": "ab"}, True),
        ({"StringEquals": {"k": "a"}}, {}, False),
        ({"StringEqualsIfExists": {"k": "a"}}, {}, True),
        ({"StringEqualsIfExists": {"k": "a"}}, {"k": "b"}, False),
        ({"Null": {"k": "true"}}, {}, True),
        ({"Null": {"k": "true"}}, {"k": "a"}, False),
        ({"Null": {"k": "false"}}, {}, False),
        ({"Null": {"k": "false"}}, {"k": "a"}, True),
        ({"ForAllValues:StringLike": {"k": ["a*", "b"]}}, {"k": ("ab", "b")}, True),
        ({"ForAllValues:StringLike": {"k": ["a*", "b"]}}, {"k": ("ab", "c")}, False),
        ({"ForAllValues:StringLike": {"k": "a"}}, {}, True),
        ({"StringEquals": {"k": "a", "l": "b"}}, {"k": "a"}, False),
        ({"StringEquals": {"k": "a"}, "Bool": {"l": "false"}}, {"k": "a", "l": "true"}, False),
    ],
)
def test_every_condition_has_to_hold(
    condition: dict[str, Any], context: dict[str, Any], allowed: bool
) -> None:
    access = Access(GET.action, GET.resource, context)
    assert bool(grants_used(policy(Condition=condition), access)) == allowed


def test_unknown_condition_is_an_error() -> None:
    with pytest.raises(KeyError, match="NumericLessThan"):
        grants_used(policy(Condition={"NumericLessThan": {"k": "1"}}), GET)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("*-??", "x-12", True),
        ("[a]", "a", False),
    ],
)
def test_wildcards(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) == found


def test_grants_are_every_action_on_every_resource_of_allow_statements() -> None:
    assert len(grants_of(policy(Action=["a:B", "a:C"], Resource=["x", "y", "z"]))) == 6
    assert not grants_of(policy(Effect="Deny"))


def test_what_is_refused_and_what_is_unused_have_their_names() -> None:
    policies = policy(
        Action=["s3:GetObject", "s3:PutObject"],
        Resource=["arn:aws:s3:::b/p/*", "arn:aws:s3:::b/q/*"],
    )
    put = Access("s3:PutObject", "arn:aws:s3:::b/p/a", {"k": "v"})
    assert refused(
        policies, [GET, put, Access("s3:DeleteObject", "arn:aws:s3:::b/p/a", {"k": "v"})]
    ) == ["s3:DeleteObject on arn:aws:s3:::b/p/a (k=v)"]
    assert unused(policies, [GET]) == ["S: arn:aws:s3:::b/q/*", "S: s3:PutObject"]
    assert unused(policies, [GET, put, Access("s3:GetObject", "arn:aws:s3:::b/q/a")]) == []
