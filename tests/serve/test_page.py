"""The page at /: complete in itself, and usable without a mouse."""

from __future__ import annotations

import re
import shutil
import urllib.request
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES
from helpers.runs.served import KEY, Server


def page_of(server: Server) -> str:
    with urllib.request.urlopen(f"{server.url}/", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/html")
        assert response.headers["X-Frame-Options"] == "DENY"
        return str(response.read().decode())


def test_it_loads_nothing_from_elsewhere(server: Server) -> None:
    page = page_of(server)
    assert len(page.splitlines()) <= 250
    assert "default-src 'none'" in page
    for word in ("//", "@import", "url(", "src=", "innerHTML", "insertAdjacent", "eval", "storage"):
        assert word not in re.sub(r"^ *// .*$", "", page, flags=re.MULTILINE), word
    assert re.findall(r'href="([^"]*)"', page) == ["data:,"]


def test_its_policy_allows_what_it_has_alone(server: Server) -> None:
    """By a word that is another one each time."""
    page, other = page_of(server), page_of(server)
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", page))
    assert page.count(f'nonce="{nonce}"') == len(re.findall("<(?:script|style)", page)) == 2
    assert nonce not in other


def test_the_service_has_what_it_asks(server: Server) -> None:
    page = page_of(server)
    fetched = re.findall(r'(?:fetch|post)\("([^"]+)"', page)
    assert fetched == ["translate/stream", "languages"]
    for path in fetched:
        assert server.post(f"/{path}", b"{}")[0] in (403, 405) if path != "languages" else True
    with urllib.request.urlopen(f"{server.url}/languages", timeout=10) as response:
        assert response.status == 200


@pytest.fixture(scope="module")
def browser() -> Any:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as control:
        browser = control.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_in_a_browser(browser: Any, server: Server, expected: dict[str, str]) -> None:
    """By the keyboard; text is text, and nothing is asked of others."""
    page = browser.new_page(color_scheme="dark")
    faults: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(server.url)
    page.locator("#direction option").wait_for(state="attached")
    assert page.locator("#direction").inner_text() == "English to German"
    page.keyboard.type(f"{SENTENCES[0]}\n<b>1</b>")  # the text has the focus
    page.keyboard.press("Control+Enter")
    page.locator("#figures.fault", has_text="the API key").wait_for()
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    page.locator("#figures", has_text="tokens a step").wait_for()
    assert page.locator("#output").inner_text().startswith(f"{expected[SENTENCES[0]]}\n")
    assert page.locator("#output b").count() == 0
    assert page.locator("#output .accepted").count() > 0
    assert page.locator("#output .bonus").count() > 0
    page.get_by_label("Text").fill("\n".join([SENTENCES[0]] * 200))
    page.keyboard.press("Control+Enter")
    page.locator("#output span").nth(3).wait_for()
    page.keyboard.press("Escape")
    page.locator("#figures", has_text="cancelled").wait_for()
    assert faults == []
    assert {url.removeprefix(server.url) for url in requests} == {
        *("/", "/languages", "/translate/stream")
    }
    page.close()
