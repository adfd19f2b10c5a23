"""report.html laid out by a real browser: nothing sticks out of a phone's screen, and dark is dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scaling.report.render import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=5000", "--dump-dom"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
# The page itself allows no script, so its frame's parent measures it.
FRAME = """<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><pre id="out"></pre><script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  document.getElementById("out").textContent = JSON.stringify({{
    too_wide_by: root.scrollWidth - root.clientWidth,
    plot_width: page.querySelector(".plot svg").getBoundingClientRect().width,
    background: getComputedStyle(page.body).backgroundColor,
    lines: [...page.querySelectorAll(".plot svg text")].length,
  }});
}};
</script>"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium (Debian: apt-get install chromium)"),
]


def measure(page: str, width: int, dark: bool, folder: Path) -> dict[str, object]:
    """What the browser made of the page in a frame of that width."""
    source = folder / "frame.html"
    source.write_text(FRAME.format(width=width, page=html.escape(page)), encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [str(CHROMIUM), *FLAGS, *scheme, f"--user-data-dir={folder / 'profile'}", source.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="out">(.+?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_page_fits_and_follows_the_colour_scheme(width, dark, make_outcomes, make_outcome, make_report, tmp_path):
    failed = make_outcome(4, reason="x" * 400, log_tail=("y" * 400,))
    seen = measure(render_html(make_report([*make_outcomes({1: 40, 2: 21}), failed])), width, dark, tmp_path)
    assert seen["too_wide_by"] == 0
    assert 300 <= seen["plot_width"] <= 600
    assert seen["lines"] > 5
    assert seen["background"] == ("rgb(20, 24, 29)" if dark else "rgb(254, 254, 254)")
