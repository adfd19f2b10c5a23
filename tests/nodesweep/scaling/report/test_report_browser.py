"""report.html in a real browser: nothing overflows the screen of a phone or desktop, a printed page
or a plot, dark mode is dark, and axe-core finds no problem."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.render import render_html, render_share
from tests.nodesweep.scaling.instances.conftest import CHEAP
from tests.nodesweep.scaling.instances.test_tried import FASTER, SECONDS, TWICE, compared, ran

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--log-level=0"),
]
# The page itself allows no script, so its frame's parent measures it.
FRAME = """<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>
<pre id="out"></pre>
<script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const box = (element) => element.getBoundingClientRect();
  const plots = [...page.querySelectorAll(".plot img")];
  const link = page.querySelector("td a, th a");
  document.getElementById("out").textContent = JSON.stringify({{
    too_wide_by: root.scrollWidth - root.clientWidth,
    plot_widths: plots.map((plot) => box(plot).width),
    drawn: plots.every((plot) => plot.naturalWidth > 0),
    filter: getComputedStyle(plots[0]).filter,
    background: getComputedStyle(page.body).backgroundColor,
    link_leads_to: page.querySelector(link.getAttribute("href"))?.tagName,
    regions_without_focus: [...page.querySelectorAll(".scroll, pre")].filter((part) =>
      part.tabIndex !== 0).length,
  }});
}};
</script>"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("pages_with_saved_plots"),
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs a Chromium (Debian: apt-get install chromium)"
    ),
]


def measure(page: str, width: int, dark: bool, folder: Path) -> dict[str, Any]:
    """Return the browser's measurements of the page in a frame of that width; fail if its console
    has an error."""
    source = folder / "frame.html"
    source.write_text(FRAME.format(width=width, page=html.escape(page)), encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [
        str(CHROMIUM),
        *FLAGS,
        *scheme,
        f"--user-data-dir={folder / 'profile'}",
        source.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="out">(.+?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    assert ":CONSOLE" not in done.stderr, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.fixture
def full_report(make_outcome, make_report) -> ScalingReport:
    """Return a report with all four plots, every kind of marker, intervals, a failure, and names
    that cannot be wrapped."""
    times = {1: 40.0, 2: 20.0, 4: 45.0}

    def run(nodes: int, repeat: int):
        return make_outcome(
            nodes,
            times[nodes] + repeat,
            repeat,
            platform_kind="simulated",
            instance_type="ml.p4de.24xlarge",
            clocks=Clocks(
                train_seconds=times[nodes] + repeat,
                billable_seconds=50.0,
                steady_step_seconds=0.5,
                submit_to_end_seconds=200.0,
            ),
            world_size=8 * nodes,
            global_batch_size=4096,
            per_replica_batch_size=512 // nodes,
            learning_rate=0.1,
            utilisation={"cpu_percent": 80.0, "gpu_percent": 90.0, "disk_percent": 10.0},
            metrics={
                "epochs": 2,
                "data_wait_share": 0.1,
                "final_metric": {
                    "name": "accuracy",
                    "value": 0.5 if nodes == 2 else 0.9,
                    "goal": "maximize",
                },
            },
            phases={"Starting": 90.0, "Downloading": 20.0, "Training": 45.0, "Uploading": 3.0},
            output_uri="s3://bucket/" + "z" * 150,
        )

    failed = make_outcome(
        8,
        platform_kind="simulated",
        instance_type="ml.p4de.24xlarge",
        reason="x" * 400,
        log_tail=("y" * 400,),
    )
    price = Price(
        instance_type="ml.p4de.24xlarge",
        usd_per_hour=40.0,
        source="https://" + "w" * 200,
        date="2026-01-01",
    )
    return make_report(
        [*(run(n, repeat) for n in (1, 2, 4) for repeat in (1, 2, 3)), failed], price=price
    )


@pytest.fixture
def full_page(full_report) -> str:
    return render_html(full_report)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_page_fits_and_follows_the_colour_scheme(width, dark, full_page, tmp_path):
    seen = measure(full_page, width, dark, tmp_path)
    assert seen["too_wide_by"] == 0
    assert len(seen["plot_widths"]) == 4
    assert all(300 <= plot_width <= 600 for plot_width in seen["plot_widths"])
    assert seen["drawn"]
    assert seen["background"] == ("rgb(20, 24, 29)" if dark else "rgb(254, 254, 254)")
    assert (seen["filter"] != "none") is dark


@pytest.mark.parametrize("width", [390, 500, 1280])
def test_a_page_on_variants_fits(width, make_config, tmp_path):
    config = make_config(
        sweep={"node_counts": [1, 2, 4], "repeats": 3, "variants": [TWICE]},
        training={"instance_type": CHEAP, "hyperparameters": {"num_workers": 2}},
    )
    report = compared(config, [*ran("a", SECONDS), *ran("b", FASTER)])
    assert report.instances.predicted and report.remedies is not None
    seen = measure(render_html(report), width, False, tmp_path)
    assert seen["too_wide_by"] == 0
    assert all(300 <= plot_width <= 600 for plot_width in seen["plot_widths"])


def test_links_and_scroll_regions_work(full_page, tmp_path):
    seen = measure(full_page, 390, False, tmp_path)
    assert seen["link_leads_to"] == "TR"
    assert seen["regions_without_focus"] == 0


A4_TEXT_WIDTH = 703
"""Pixels of CSS between the margins of the printed page: 210 mm less 2 x 12 mm."""
TOO_WIDE = """(parts) => [...document.querySelectorAll(parts)].filter((part) => {
  const box = part.closest(".scroll") ?? part;
  return box.checkVisibility() && box.scrollWidth > box.clientWidth;
}).map((part) => part.textContent.trim().slice(0, 80))"""
OPENINGS = """() => [...document.querySelectorAll("h1, h2, h3, caption, thead tr")].map(
  (part) => part.textContent)"""


def lowest_line(page: pypdfium2.PdfPage) -> str:
    """Return the line at the bottom of a printed page, without spaces."""
    text = page.get_textpage()
    foot = min(text.get_rect(index)[1] for index in range(text.count_rects()))
    line = "".join(text.get_text_bounded(bottom=foot - 1, top=foot + 7).split())
    assert line
    return line


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.fixture
def shown(browser_page: Page, full_page: str) -> Page:
    browser_page.emulate_media(media="screen", color_scheme="light")
    browser_page.set_viewport_size({"width": 1280, "height": 900})
    browser_page.set_content(full_page)
    return browser_page


def test_axe_finds_nothing_with_every_column_shown(shown):
    shown.evaluate("document.querySelectorAll('details').forEach((part) => part.open = true)")
    found = Axe().run(shown).response
    shown.emulate_media(color_scheme="dark")
    in_dark = Axe().run(shown, options={"runOnly": ["color-contrast"]}).response
    assert len(found["passes"]) > 20
    assert [rule["id"] for rule in in_dark["passes"]] == ["color-contrast"]
    violations = [*found["violations"], *in_dark["violations"]]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in violations] == []


def test_axe_finds_nothing_in_the_page_to_share(browser_page, full_report):
    browser_page.emulate_media(media="screen", color_scheme="light")
    browser_page.set_content(render_share(full_report))
    found = Axe().run(browser_page).response
    assert len(found["passes"]) > 20
    assert [rule["id"] for rule in found["violations"]] == []


@pytest.mark.parametrize("width", [390, 600])
def test_the_results_fit_a_narrow_screen(width, shown):
    shown.set_viewport_size({"width": width, "height": 900})
    assert shown.evaluate(TOO_WIDE, "#results table") == []


def test_four_columns_come_first_and_the_others_by_the_keyboard(shown):
    def headings() -> list[str]:
        cells = shown.locator("#results thead th:visible").all_text_contents()
        return [text.strip() for text in cells]

    assert headings() == ["N", "T", "S", "E", "cost"]
    assert "failed (1)" in shown.locator("#results tr:has(.bad):visible").first.inner_text()
    shown.locator("#results summary").focus()
    shown.keyboard.press("Enter")
    assert {"D", "limits", "status", "world", "lr", "accuracy"} <= set(headings())
    assert shown.evaluate(TOO_WIDE, "table") == []


def test_print_cuts_off_nothing_and_leaves_no_heading_at_the_foot_of_a_page(shown):
    shown.emulate_media(media="print")
    shown.set_viewport_size({"width": A4_TEXT_WIDTH, "height": 900})
    assert shown.locator("thead th:visible", has_text="accuracy").count() == 2, "no column is lost"
    assert shown.evaluate(TOO_WIDE, "table, pre, p, dl, figure") == []
    openings = ["".join(text.split()) for text in shown.evaluate(OPENINGS)]
    # the page's breaks fall elsewhere with each height of what stands above
    for height in (0, 90, 180, 270):
        shown.evaluate("(height) => document.body.style.paddingTop = `${height}px`", height)
        with pypdfium2.PdfDocument(shown.pdf(format="A4", prefer_css_page_size=True)) as printed:
            lines = [lowest_line(page) for page in printed]
        assert len(lines) > 3
        alone = [line for line in lines if any(text.endswith(line) for text in openings)]
        assert alone == [], height
