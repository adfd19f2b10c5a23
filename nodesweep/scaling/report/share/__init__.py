"""Prepare a report for sharing outside the account.

Everything that comes from the account or from the output of a program is removed: config,
provenance, image, addresses, and the reasons and log lines of failed runs. In the title and in the
sentences that nodesweep writes, everything that looks like a name from the account is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nodesweep.scaling.report.model import Point, ScalingReport

LEFT_OUT = "removed from this page"
_NOTE = (
    "This page is safe to share: it leaves out config, image, addresses and the output of runs "
    "that did not complete."
)
_HIDDEN = (
    (re.compile(r"\barn:aws[a-z-]*:[^\s\"'<>,;)\]}]+"), "(arn)"),
    (re.compile(r"\b[a-z0-9]+://[^\s\"'<>,;)\]}]+"), "(address)"),
    (re.compile(r"\b[\w.-]+\.(?:amazonaws\.com(?:\.cn)?|on\.aws)\b[^\s\"'<>,;)\]}]*"), "(address)"),
    (re.compile(r"(?<!\d)(?:\d{12}|\d{4}-\d{4}-\d{4})(?!\d)"), "(account)"),
    (re.compile(r"(?<![\w./])~?/(?:[\w.@+-]+/)*[\w.@+-]+"), "(path)"),
)


def without_account_names(report: ScalingReport) -> ScalingReport:
    """Return the report without names of the account, machine or users, but with all numbers."""
    names = _names(report.config or {})
    conditions = report.conditions.model_copy(update={"image_uri": None})
    texts = {"title": report.title, "headline": report.headline}
    return report.model_copy(
        update={
            **{field: _hide(text, names) for field, text in texts.items()},
            "caveats": (_NOTE, *(_hide(caveat, names) for caveat in report.caveats)),
            "config": None,
            "provenance": {},
            "conditions": conditions,
            "missing_parts": tuple(
                each.model_copy(update={"reason": _hide(each.reason, names)})
                for each in report.missing_parts
            ),
            "points": tuple(map(_without_output, report.points)),
            "other_points": tuple(map(_without_output, report.other_points)),
        }
    )


def _without_output(point: Point) -> Point:
    return point.model_copy(
        update={
            "reason": None if point.reason is None else LEFT_OUT,
            "failed_host": None,
            "log_tail": (),
            "other_log_tail": (),
            "program_error": None,
            "output_uri": None,
        }
    )


def _names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the bucket and the role, which cannot be recognized by their form."""
    platform = config.get("platform") or {}
    role = str(platform.get("role_arn") or "").rpartition("/")[2]
    return [name for name in (str(platform.get("bucket") or ""), role) if name]


def _hide(text: str, names: list[str]) -> str:
    for shape, instead in _HIDDEN:
        text = shape.sub(instead, text)
    for name in names:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "(name)", text)
    return text
