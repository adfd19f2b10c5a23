"""A deployment's form in Prefect's UI: its fields and their help, a refused value, a run by clicks,
its graph and artifacts.

`NODESWEEP_WRITE_SCREENSHOTS=1` writes docs/prefect-form.png and docs/prefect-run.png anew, and
docs/prefect-form.sha256, by which a fast test sees that the form has changed since.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from nodesweep.events import STAGES
from nodesweep.scaling import names
from tests.production.form_picture import DIGEST_FILE, DOCS, digest_of_form
from tests.production.world import World, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None,
        reason="chromium is not installed (apt-get install chromium)",
    ),
]
DEPLOYMENT = "scaling-benchmark/local"
PATIENCE_MILLISECONDS = 300_000


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        expect.set_options(timeout=PATIENCE_MILLISECONDS)
        yield page
        browser.close()


def screenshot(page: Page, name: str) -> None:
    if os.environ.get("NODESWEEP_WRITE_SCREENSHOTS"):
        page.wait_for_timeout(1000)  # the page fades in
        page.screenshot(path=DOCS / name, full_page=True)
        DIGEST_FILE.write_text(f"{digest_of_form()}\n")


def test_a_benchmark_is_started_from_its_form(world: World, page: Page) -> None:
    ui, deployment = world.machine.api_url.removesuffix("/api"), world.deployment_id(DEPLOYMENT)
    settings = world.settings("clicked", sweep__node_counts=[1])
    world.call(
        "PATCH", f"/deployments/{deployment}", parameters={"preset": "local", "settings": settings}
    )

    sign_in(page, world)
    page.goto(
        f"{ui}/deployments/deployment/{world.deployment_id('scaling-benchmark/scaling-benchmark')}/run"
    )
    expect(page.get_by_text("search_mlp_p3").first).to_be_visible()
    screenshot(page, "prefect-form.png")

    page.goto(f"{ui}/deployments/deployment/{deployment}/run")
    for help_text in (
        "The benchmark to start from",
        "SageMaker training instance type",
        "use 3 or more to get confidence intervals. Blank: 1 (first_sweep, local",
    ):
        expect(page.get_by_text(help_text).first).to_be_visible()
    repeats = page.locator("input[type=number]").first
    repeats.fill("99")
    page.get_by_role("button", name="Submit").click()
    refusal = page.get_by_text(
        "Validation failed for field 'repeats'. Failure reason: 99 is greater than the maximum"
        " of 50"
    )
    expect(refusal.first).to_be_visible()
    assert not world.ledger("clicked").jobs

    repeats.fill("2")
    submit(page)
    [run] = wait_for("the run that was started", lambda: runs_of(world, deployment))
    assert world.end_of(run) == "Completed"
    assert world.ledger("clicked").statuses == {"Completed": 2}

    page.goto(f"{ui}/runs/flow-run/{run}")
    page.get_by_text("Artifacts", exact=True).first.click()
    for artifact in ("sweep-progress", "sweep-points", "scaling-report", "data-docs"):
        expect(page.get_by_text(artifact).first).to_be_visible()
    page.get_by_text("Task Runs", exact=True).first.click()
    for text in ("train-1n-r1", "train-1n-r2", "attempt 1 of 2"):
        expect(page.get_by_text(text).first).to_be_visible()
    screenshot(page, "prefect-run.png")
    assert bars_of(world, run) == sorted(STAGES)
    check_report_artifact(world, page, run)


def bars_of(world: World, run: str) -> list[str]:
    """Return the bars of the run's graph before any is opened; they come from the page's source,
    since a canvas shows them."""
    nodes = world.call("GET", f"/flow_runs/{run}/graph-v2")["nodes"]
    return sorted(node["label"] for _, node in nodes if not node["encapsulating"])


def check_report_artifact(world: World, page: Page, run: str) -> None:
    """Check that the plots are drawn, and that the links open."""
    wanted = {"flow_run_id": {"any_": [run]}, "key": {"any_": ["scaling-report"]}}
    [artifact] = world.call("POST", "/artifacts/filter", artifacts=wanted)
    page.goto(f"{page.url.partition('/runs/')[0]}/artifacts/artifact/{artifact['id']}")
    plots = page.locator("img[src^='data:image/svg+xml']")
    expect(plots.first).to_be_visible()
    widths = [
        plot.evaluate("shown => shown.complete && shown.naturalWidth") for plot in plots.all()
    ]
    assert len(widths) >= 2 and all(width > 300 for width in widths), widths
    for name in (names.REPORT_HTML, names.POINTS_CSV):
        link = page.get_by_role("link", name=name, exact=True)
        assert page.request.get(str(link.get_attribute("href"))).ok, name
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=names.REPORT_HTML, exact=True).click()
    expect(opened.value.get_by_role("heading", level=1)).to_be_visible()


def submit(page: Page) -> None:
    """Click as a user does, until Prefect has accepted the run.

    On SQLite, its server immediately refuses (503) a click that coincides with another write, and
    the page does not retry (docs/production.md).
    """
    for _ in range(20):
        with page.expect_response(re.compile("/create_flow_run$")) as answer:
            page.get_by_role("button", name="Submit").click()
        if answer.value.ok:
            return
        assert answer.value.status == 503, answer.value.text()
        page.wait_for_timeout(500)
    raise AssertionError("Prefect refused 20 clicks with 503")


def sign_in(page: Page, world: World) -> None:
    """Type the password that `make up` shows, after another one was refused."""
    page.goto(world.machine.api_url.removesuffix("/api"))
    field = page.locator("input[type=password]")
    for password in ("admin:admin", world.machine.auth_file.read_text().strip()):
        field.fill(password)
        page.get_by_role("button", name="Login").click()
        if password == "admin:admin":
            expect(page.get_by_text("Invalid credentials").first).to_be_visible()
    expect(page).to_have_url(re.compile("/dashboard"))


def runs_of(world: World, deployment: str) -> list[str]:
    found = world.call(
        "POST", "/flow_runs/filter", flow_runs={"deployment_id": {"any_": [deployment]}}
    )
    return [run["id"] for run in found if run["parameters"].get("repeats") == 2]
