"""A real browser for the tests of pages: what a visit notes, and a slider that is moved."""

import re
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def visit(browser, url, **options):
    """A page, and a list of any console error and any request for something beyond it."""
    page = browser.new_context(**options).new_page()
    troubles = []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((url, "data:")) else troubles.append(r.url))
    page.goto(url)
    return page, troubles


def move(page, name, value):
    """Move a slider."""
    page.evaluate(
        "([name, value]) => { const s = document.getElementById(name); s.value = value;"
        " s.dispatchEvent(new Event('input')); }",
        [name, value],
    )


def is_dark(page):
    """Whether the ink is brighter than the paper."""
    ink, paper = (
        sum(map(int, re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{key}"))[:3]))
        for key in ("color", "backgroundColor")
    )
    return ink > paper
