"""A report for people outside the account: without account numbers, ARNs, and the names of buckets,
roles and registries.

Names are taken from where AWS's syntax says what they are (an ARN, s3://, a registry's host, the
config's bucket) and then hidden wherever they stand, in a log line or a reason too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from scaling.report.model import ScalingReport

ACCOUNT, ARN, BUCKET, REGISTRY, ROLE = "(account)", "(arn)", "(bucket)", "(registry)", "(role)"
_ARN = re.compile(r"\barn:aws[a-z-]*:[^\s\"'<>,;)\]}]+")
_REGISTRY = re.compile(r"\b\d{12}\.dkr[.-]ecr[\w.-]*\.(?:amazonaws\.com(?:\.cn)?|on\.aws)")
_ACCOUNT = re.compile(r"(?<![\da-f])\d{12}(?![\da-f])|(?<!\d)\d{4}-\d{4}-\d{4}(?!\d)")
_S3_HOST = r"\.s3(?:[.-][\w-]+)*\.amazonaws\.com"
_BUCKETS = (
    re.compile(r"\bs3[an]?://([^\s/\"'<>,;)\]}]+)"),
    re.compile(r"\barn:aws[a-z-]*:s3:::([^\s/\"'<>,;)\]}*]+)"),
    re.compile(rf"([a-z0-9][a-z0-9.-]+){_S3_HOST}"),
)
_ROLES = (
    re.compile(r":role/(?:[^\s/\"']+/)*([\w+=,.@-]+)"),
    re.compile(r":assumed-role/([\w+=,.@-]+)"),
)


def without_account(report: ScalingReport) -> ScalingReport:
    """The report with what names an account or a thing in it replaced by "(account)", "(arn)",
    "(bucket)", "(registry)" and "(role)".
    """
    plain = report.model_dump(mode="json")
    texts = list(_texts(plain))
    platform = (report.config or {}).get("platform") or {}
    buckets = {found for shape in _BUCKETS for text in texts for found in shape.findall(text)}
    buckets |= {str(platform["bucket"])} if platform.get("bucket") else set()
    roles = {found for shape in _ROLES for text in texts for found in shape.findall(text)}
    shown = {**dict.fromkeys(roles, ROLE), **dict.fromkeys(buckets, BUCKET)}
    longest_first = "|".join(map(re.escape, sorted(shown, key=len, reverse=True)))
    name = re.compile(rf"(?<![\w-])(?:{longest_first or '(?!)'})(?![\w-])")
    values = _schema_values()

    def hide(text: str) -> str:
        if text in values:
            return text
        text = _REGISTRY.sub(REGISTRY, _ARN.sub(ARN, text))
        return _ACCOUNT.sub(ACCOUNT, name.sub(lambda found: shown[found[0]], text))

    return ScalingReport.model_validate(_changed(plain, hide))


@lru_cache(maxsize=1)
def _schema_values() -> frozenset[str]:
    """The values that a field of the report may have one of: "aws" is one, whatever a bucket's
    name is.
    """
    return frozenset(
        str(value)
        for part in _parts(ScalingReport.model_json_schema())
        for value in (*part.get("enum", ()), *filter(None, [part.get("const")]))
    )


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
    if isinstance(schema, Mapping | list):
        for part in schema.values() if isinstance(schema, Mapping) else schema:
            yield from _parts(part)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON, the keys of its mappings included."""
    if isinstance(value, Mapping):
        yield from map(str, value)
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _changed(value: Any, hide: Callable[[str], str]) -> Any:
    """The value with every text and key changed, and a whole number where its digits are."""
    if isinstance(value, Mapping):
        return {hide(str(key)): _changed(part, hide) for key, part in value.items()}
    if isinstance(value, list):
        return [_changed(part, hide) for part in value]
    if isinstance(value, str):
        return hide(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return hidden if is_number and (hidden := hide(str(value))) != str(value) else value
