"""The report in Firefox, where it is installed, by WebDriver BiDi: the browser speaks it itself, so that no
driver is needed.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relutrim.report.html.page import compression_page
from report_pages import channels
from rewriting import compressed

websocket = pytest.importorskip("websocket", reason="websocket-client is not installed; selenium brings it")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = pytest.mark.skipif(FIREFOX is None, reason="no Firefox (Debian: apt install firefox-esr)")


class Firefox:
    """One headless browser with one page; what its console says is kept."""

    def __init__(self, folder: Path) -> None:
        self.said: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        log = folder / "firefox.log"
        command = [FIREFOX, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port=0"]
        with log.open("wb") as file:
            self._process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=file)
        try:
            address = _address(log, self._process)
            self._socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
            self._call("session.new", capabilities={})
            self._call("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
            self._page = self._call("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self.close()
            raise

    def _call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            found = json.loads(self._socket.recv())
            if found.get("id") == number:
                assert found["type"] == "success", found
                return found["result"]
            if found["type"] == "event":
                self.said.append(found)

    def open(self, page: Path, width: int) -> None:
        self.said.clear()
        size = {"width": width, "height": 900}
        self._call("browsingContext.setViewport", context=self._page, viewport=size)
        self._call("browsingContext.navigate", context=self._page, url=page.as_uri(), wait="complete")

    def value(self, expression: str) -> Any:
        """Of an expression in the page, by way of JSON."""
        found = self._call(
            "script.evaluate",
            expression=f"JSON.stringify(({expression}) ?? null)",
            target={"context": self._page},
            awaitPromise=False,
        )
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keys", "actions": actions}
        self._call("input.performActions", context=self._page, actions=[source])

    def point(self, x: float, y: float) -> None:
        move = {"type": "pointerMove", "x": round(x), "y": round(y)}
        source = {"type": "pointer", "id": "mouse", "actions": [move]}
        self._call("input.performActions", context=self._page, actions=[source])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, which it says when it does."""
    give_up = time.monotonic() + 90
    while time.monotonic() < give_up and process.poll() is None:
        if found := re.search(r"WebDriver BiDi listening on (ws://\S+)", log.read_text(errors="replace")):
            return f"{found[1]}/session"
        time.sleep(0.1)
    raise AssertionError(f"Firefox does not listen:\n{log.read_text(errors='replace')}")


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    browser = Firefox(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page") / "report.html"
    made.write_text(compression_page(compressed(channels(), 0, 1, method="auto")), encoding="utf-8")
    return made


@pytest.mark.parametrize("width", [1200, 390])
def test_a_page_opens_without_complaints_and_asks_for_nothing(firefox, page, width):
    firefox.open(page, width)
    asked = {
        event["params"]["request"]["url"] for event in firefox.said if event["method"].startswith("network")
    }
    assert {url for url in asked if not url.startswith("data:")} <= {page.as_uri()}
    assert [event for event in firefox.said if event["method"] == "log.entryAdded"] == []
    assert firefox.value("document.documentElement.scrollWidth") <= width


def test_pointing_and_keys_tell_about_neurons(firefox, page):
    firefox.open(page, 1200)
    firefox.value('document.querySelector("svg.live").scrollIntoView({block: "center"})')
    box = firefox.value('document.querySelector("svg.live").getBoundingClientRect()')
    firefox.point(box["x"] + 3, box["y"] + 3)
    assert firefox.value('document.getElementById("tip").textContent').startswith(
        "neuron 0 (channel 0, position 0, 0)"
    )
    firefox.value('document.querySelector("svg.live").focus()')
    firefox.press("\ue014")  # the right arrow
    assert firefox.value('document.getElementById("tip").textContent').startswith(
        "neuron 1 (channel 0, position 0, 1)"
    )
    assert firefox.value('document.querySelector("svg.live").getAttribute("aria-valuenow")') == "1"
