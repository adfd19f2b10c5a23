"""points.csv: one row per attempt, every clock and fact in its own column."""

from __future__ import annotations

import re

from nodesweep.scaling.report.frames import points_frame
from nodesweep.scaling.report.model import ScalingReport

# Text that a spreadsheet takes for a formula (OWASP, CSV Injection), including full-width signs and
# any sign after a separator, since some locales split a row at `;` and tabs even inside quotes.
_FORMULA = re.compile("^[=+\\-@＝＋－＠\t\r\n]|[;\t\n][\\s\"']*[=+\\-@＝＋－＠]")


def render_csv(report: ScalingReport) -> str:
    """Return the attempts as CSV; unknown is an empty field.

    Text that a spreadsheet would run as a formula gets an apostrophe before the sign.
    """
    frame = points_frame(report)
    texts = frame.select_dtypes("string")
    frame[texts.columns] = texts.map(_without_formula, na_action="ignore")
    return frame.rename(columns=_without_formula).to_csv(index=False, lineterminator="\n")


def _without_formula(text: str) -> str:
    # The csv module does not quote a lone carriage return, which readers take for a row's end.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _FORMULA.sub(lambda found: f"{found[0][:-1]}'{found[0][-1]}", text)
