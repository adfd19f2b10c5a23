"""Render points.csv, with one row per attempt and a column for every clock and fact."""

from __future__ import annotations

import re

from nodesweep.scaling.report.frames import points_frame
from nodesweep.scaling.report.model import ScalingReport

# Text that a spreadsheet runs as a formula (OWASP, CSV Injection), including full-width signs and
# signs after a separator, because some locales split a row at `;` and tabs even inside quotes.
_FORMULA = re.compile("^[=+\\-@＝＋－＠\t\r\n]|[;\t\n][\\s\"']*[=+\\-@＝＋－＠]")


def render_csv(report: ScalingReport) -> str:
    """Return the attempts as CSV, with empty fields for unknown values.

    In text that a spreadsheet would run as a formula, an apostrophe is inserted before the sign.
    """
    frame = points_frame(report)
    texts = frame.select_dtypes("string")
    frame[texts.columns] = texts.map(_without_formula, na_action="ignore")
    return frame.rename(columns=_without_formula).to_csv(index=False, lineterminator="\n")


def _without_formula(text: str) -> str:
    # The csv module does not quote a lone carriage return, which readers treat as the end of a row.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _FORMULA.sub(lambda found: f"{found[0][:-1]}'{found[0][-1]}", text)
