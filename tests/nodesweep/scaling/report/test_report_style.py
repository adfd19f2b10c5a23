"""WCAG 2.2 contrast of every pair of colors that the page combines, in light and dark mode and in
print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).parents[4] / "nodesweep" / "scaling" / "templates" / "report.css").read_text(
    encoding="utf-8"
)
TEXT = [
    *(
        (colour, paper)
        for colour in ("ink", "muted", "accent", "bad")
        for paper in ("paper", "raised")
    ),
    ("ink", "warn-paper"),
]
SHAPES = [("warn", "warn-paper")]


def schemes() -> dict[str, dict[str, str]]:
    """Return the colors of light, dark and print mode, each with those it inherits from light
    mode."""
    found = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", block))
        for block in re.findall(r":root \{(.*?)\}", CSS, re.S)
    ]
    light, dark, printed = found
    return {"light": light, "dark": {**light, **dark}, "print": {**light, **printed}}


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_formula_gives_the_known_extremes():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXT, 4.5), (SHAPES, 3.0)])
def test_contrast_is_sufficient(scheme, pairs, least):
    colours = schemes()[scheme]
    low = {pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < least} == {}


def test_shapes_of_a_plot_differ_from_its_paper():
    """WCAG 1.4.11; the grid is decoration."""
    from nodesweep.scaling.report.plots.canvas import COLOURS

    shapes = {name: contrast(colour, "#ffffff") for name, colour in COLOURS.items()}
    assert [name for name, ratio in shapes.items() if ratio < 3] == ["grid", "hollow"]
