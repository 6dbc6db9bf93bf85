"""The report in a real browser: headless Chromium, driven by Selenium, where both are installed."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.report.html.neuron_map import VERDICTS, Layout
from relutrim.report.html.page import analysis_page, compression_page
from relutrim.report.json import compression_json, model_json
from report_pages import HOSTILE, channels, three
from rewriting import QUICK, compressed

selenium = pytest.importorskip("selenium", reason="selenium is not installed; it drives the browser")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="no Chromium with its driver (Debian: apt install chromium chromium-driver)",
)

SCHEMES = ("light", "dark")
READABLE = [("--ink", "--page"), ("--ink", "--card"), ("--ink", "--wash"), ("--soft", "--page")]
READABLE += [("--soft", "--card"), ("--soft", "--wash"), ("--link", "--page"), ("--link", "--card")]
READABLE += [("--good", "--good-wash"), ("--bad", "--bad-wash"), ("--card", "--ink")]
SEEN = ["--active", "--inactive", "--unstable", "--unknown", "--carried", "--merged", "--folded"]
SEEN += ["--constant", "--negligible"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has no sandbox for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page of each kind."""
    made = tmp_path_factory.mktemp("pages")
    told = compressed(channels(), 0, 1, method="auto")
    bare = analyze_network(three(), Box(0, 1), data=None, **QUICK)
    hostile = [three(name, f"out {name}", f"source {name}") for name in HOSTILE]
    for name, text in {
        "compress": compression_page(compressed(three(), 0, 1, method="auto")),
        "channels": compression_page(told),
        "analyze": analysis_page(bare, model_json(three())),
        **{
            f"hostile{k}": compression_page(
                compressed(network, 0, 1),
                {**model_json(network), "path": f"{HOSTILE[k]}.onnx"},
                command=HOSTILE[k],
            )
            for k, network in enumerate(hostile)
        },
    }.items():
        (made / f"{name}.html").write_text(text, encoding="utf-8")
    return made


def look(browser: Any, folder: Path, name: str, *, scheme: str = "light", width: int = 1200) -> None:
    """Open a page; whatever the console says is an error."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get((folder / f"{name}.html").as_uri())
    assert browser.get_log("browser") == []


def tip(browser: Any) -> str:
    found: str = browser.find_element(By.ID, "tip").text
    return found


def point(browser: Any, index: int, layout: Layout, kind: str = "mouse") -> str:
    """Point at the middle of a neuron's square, which is where the layout has it."""
    tile, inside = divmod(index, layout.width * layout.height)
    row, column = divmod(inside, layout.width)
    x = (tile % layout.across) * (layout.width + 1) + column + 0.5
    y = (tile // layout.across) * (layout.height + 1) + row + 0.5
    browser.execute_script(
        """
        const svg = document.querySelector("svg.live");
        const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
        const at = {bubbles: true, pointerType: arguments[2],
                    clientX: box.left + arguments[0] * 10 * box.width / view.width,
                    clientY: box.top + arguments[1] * 10 * box.height / view.height};
        svg.dispatchEvent(new PointerEvent(arguments[2] === "mouse" ? "pointermove" : "pointerdown", at));
        """,
        x,
        y,
        kind,
    )
    return tip(browser)


@pytest.mark.parametrize("name", ["compress", "channels", "analyze"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_opens_without_complaints_and_asks_for_nothing(browser, folder, name, scheme):
    look(browser, folder, name, scheme=scheme)
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.find_element(By.TAG_NAME, "h1").is_displayed()


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_names_are_only_text(browser, folder, number):
    look(browser, folder, f"hostile{number}", width=360)
    assert browser.execute_script("return document.scripts.length") == 3
    assert browser.execute_script("return document.images.length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360


def test_hovering_tells_about_every_neuron(browser, folder):
    result = compressed(channels(), 0, 1, method="auto")
    (layer,) = compression_json(result, details=True)["layers"]
    look(browser, folder, "channels")
    layout = Layout.of(result.stability.layers[0].shape)
    for index, neuron in enumerate(layer["neurons"]):
        text = point(browser, index, layout)
        assert text.startswith(
            f"neuron {index} (channel {index // 16}, position {index % 16 // 4}, {index % 4})"
        )
        assert neuron["verdict"] in text
        assert neuron["evidence"] in text
        if neuron["margin"] is not None:
            said = float(text.split("margin: at least ")[1].split("\n")[0])
            assert neuron["margin"] * 0.998 <= said <= neuron["margin"]
        low, high = text.rsplit("before the ReLU: ", 1)[1].replace("−", "-").split(" to ")
        assert float(low) <= neuron["lower"]
        assert neuron["upper"] <= float(high)


def test_the_real_mouse_hovers_too(browser, folder):
    look(browser, folder, "compress")
    picture = browser.find_element(By.CSS_SELECTOR, "svg.live")
    webdriver.ActionChains(browser).move_to_element(picture).perform()
    assert tip(browser).startswith("neuron 1: inactive\nevidence: proof")
    webdriver.ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert tip(browser) == ""


def test_the_keyboard_reaches_every_neuron(browser, folder):
    look(browser, folder, "compress")
    for _ in range(40):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.execute_script("return document.activeElement.matches('svg.live')"):
            break
    picture = browser.switch_to.active_element
    assert picture.get_attribute("role") == "slider"
    assert tip(browser).startswith("neuron 0: active")
    for key, expected in [
        (Keys.ARROW_RIGHT, "neuron 1: inactive"),
        (Keys.END, "neuron 2: unstable"),
        (Keys.ARROW_RIGHT, "neuron 2: unstable"),
        (Keys.ARROW_LEFT, "neuron 1: inactive"),
        (Keys.PAGE_UP, "neuron 0: active"),
        (Keys.HOME, "neuron 0: active"),
    ]:
        webdriver.ActionChains(browser).send_keys(key).perform()
        assert tip(browser).startswith(expected)
        assert picture.get_attribute("aria-valuetext").startswith(expected)
        assert picture.get_attribute("aria-valuenow") == expected[7]
    webdriver.ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert tip(browser) == ""


def test_a_tap_shows_a_neuron_and_fits_on_a_phone(browser, folder):
    look(browser, folder, "channels", width=360)
    browser.execute_script("document.querySelector('svg.live').scrollIntoView()")
    assert point(browser, 3, Layout.of((3, 4, 4)), "touch").startswith("neuron 3 ")
    box = browser.execute_script("return document.getElementById('tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= 360


@pytest.mark.parametrize("name", ["compress", "channels", "analyze"])
@pytest.mark.parametrize("width", [320, 375, 768])
def test_no_page_is_wider_than_a_phone(browser, folder, name, width):
    look(browser, folder, name, width=width)
    for closed in browser.find_elements(By.TAG_NAME, "summary"):
        browser.execute_script("arguments[0].parentElement.open = true", closed)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [*SCHEMES, "print"])
def test_text_and_marks_stand_out(browser, folder, scheme):
    look(browser, folder, "compress", scheme=scheme if scheme != "print" else "dark")
    if scheme == "print":
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    found = browser.execute_script(
        """const style = getComputedStyle(document.documentElement), full = (c) =>
             c.length === 4 ? "#" + [...c.slice(1)].map((d) => d + d).join("") : c;
           const value = (name) => full(style.getPropertyValue(name).trim());
           return Object.fromEntries(arguments[0].map((name) => [name, value(name)]));""",
        [*{name for pair in READABLE for name in pair}, *SEEN],
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    for front, back in READABLE:
        assert contrast(found[front], found[back]) >= 4.5, (front, back)
    for name in SEEN:
        assert contrast(found[name], found["--card"]) >= 3, name
    assert (luminance(found["--page"]) > 0.5) == (scheme != "dark")


def test_schemes_differ(browser, folder):
    colours = []
    for scheme in SCHEMES:
        look(browser, folder, "compress", scheme=scheme)
        script = "return getComputedStyle(document.body).backgroundColor"
        colours.append(browser.execute_script(script))
    assert colours[0] != colours[1]


def test_a_page_prints(browser, folder):
    look(browser, folder, "channels", scheme="dark")
    made = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    content = base64.b64decode(made["data"])
    assert content.startswith(b"%PDF-")
    assert len(content) > 10_000


def test_every_verdict_has_its_own_mark(browser, folder):
    """Colour is not the only difference."""
    look(browser, folder, "compress")
    marks = [
        browser.execute_script(
            """const style = getComputedStyle(document.querySelector(".legend .i-" + arguments[0]));
               return style.stroke === "none" ? "" : [style.strokeWidth, style.strokeDasharray].join();""",
            verdict.word,
        )
        for verdict in VERDICTS
    ]
    assert len(set(marks)) == len(VERDICTS)


def test_the_picture_for_the_documentation_can_be_taken(folder, tmp_path):
    script = Path(__file__).parent.parent / "docs" / "take_picture.py"
    command = [
        sys.executable,
        script,
        tmp_path / "a.png",
        folder / "compress.html",
        "--width",
        "390",
        "--whole",
    ]
    subprocess.run(command, check=True, timeout=120)
    head = (tmp_path / "a.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    assert width == 390 < height
