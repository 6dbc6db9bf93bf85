"""Takes docs/report.png: the report of the shipped network in headless Chromium, from the claim down to the
map of its neurons, with one of them pointed at. Run: make picture.

``python docs/take_picture.py OUT.png [REPORT.html] [--width W] [--scheme light|dark] [--whole]`` takes
others: on a phone (``--width 390``), in the dark, the whole page.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import relutrim
from relutrim.io.files import replacing
from relutrim.report.html.page import compression_page
from relutrim.report.json import model_json

_POINT = """
const svg = [...document.querySelectorAll("svg.live")].at(-1);
if (svg) {
  const box = svg.getBoundingClientRect();
  const [clientX, clientY] = [box.left + box.width / 3, box.top + box.height / 2];
  const at = {bubbles: true, pointerType: "mouse", clientX, clientY};
  svg.dispatchEvent(new PointerEvent("pointermove", at));
}
return document.getElementById("neurons").getBoundingClientRect().top + scrollY;
"""


def main() -> None:
    """One picture, whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--whole", action="store_true", help="not only as far as the map of the neurons")
    wish = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        report = wish.report
        if report is None:
            report = Path(folder) / "report.html"
            report.write_text(_demo(), encoding="utf-8")
        picture = _taken(browser, report, wish.width, wish.scheme, whole=wish.whole)
        with replacing(wish.out) as aside:
            aside.write_bytes(picture)


def _demo() -> str:
    """The report that ``relutrim demo`` writes, but for the folder."""
    result = relutrim.compress(relutrim.demo_model(), relutrim.Box(0, 1))
    source = {**model_json(result.original, relutrim.demo_model()), "path": relutrim.demo_model().name}
    return compression_page(result, source, out=Path("smaller.onnx"), latency=result.latency())


@contextmanager
def _browser() -> Iterator[Any]:
    found, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if found is None or driver is None:
        raise SystemExit("Chromium and its driver are needed (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has no sandbox for root
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def _taken(browser: Any, report: Path, width: int, scheme: str, *, whole: bool) -> bytes:
    """A window as high as the page: what is pointed at has its tip beside it wherever it is."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(height: int) -> None:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    resize(900)
    browser.get(report.resolve().as_uri())
    height = int(browser.execute_script("return document.documentElement.scrollHeight"))
    resize(height)
    map_at = int(browser.execute_script(_POINT))
    area = {
        "x": 0,
        "y": 0,
        "width": width,
        "height": height if whole else min(height, map_at + 420),
        "scale": 1,
    }
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": area})
    return _smaller(base64.b64decode(taken["data"]))


def _smaller(picture: bytes) -> bytes:
    """With a palette: a page has few colours, and the picture lies in a repository."""
    made = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as found:
        few = found.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(made, "png", optimize=True)
    return made.getvalue()


if __name__ == "__main__":
    main()
