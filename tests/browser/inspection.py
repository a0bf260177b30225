"""A real browser, and what is wrong with what it shows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

Scheme = Literal["light", "dark"]
Media = Literal["screen", "print"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
_PIXEL = """
const [data, done] = arguments;
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.drawImage(image, 0, 0);
  done([...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
};
image.src = `data:image/png;base64,${data}`;
"""
_LOOK = (Path(__file__).parent / "inspection.js").read_text()


class View(NamedTuple):
    """View of a page: the window's width in pixels, a colour scheme, screen or paper."""

    width: int
    scheme: Scheme = "light"
    media: Media = "screen"


VIEWS = [
    *(View(width, scheme) for width in (360, 800, 1600) for scheme in ("light", "dark")),
    View(794, "dark", "print"),
    View(680, "light", "print"),
]
SMALL = View(360, "dark")
LARGER = [View(800, "light"), View(1600, "dark"), View(680, "light", "print")]


@dataclass(frozen=True)
class Browser:
    """An open browser; every page in it is a file."""

    driver: Chrome

    def open(self, file: Path) -> None:
        self.driver.get(file.as_uri())

    def look(self, view: View, drawings: int = 1) -> list[str]:
        """Return the defects of the open page in this view, in which it is to show so many drawings."""
        self.set(view, 600)
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        self.set(view, int(height) + 100)  # what is not in the window cannot be pointed at
        found = self.driver.execute_script(_LOOK, drawings)
        missing = ["no text"] if drawings and not found["texts"] else []
        return [f"{view}: {fault}" for fault in (*found["faults"], *missing)]

    def set(self, view: View, height: int) -> None:
        """Look at the page in a window of that size."""
        metrics = {"width": view.width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": view.scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": view.media, "features": features})

    def colour(self, view: View, x: int, y: int) -> tuple[int, ...]:
        """The colour of a point of the page that is open, seen that way."""
        self.set(view, 600)
        clip = {"x": x, "y": y, "width": 1, "height": 1, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
        return tuple(self.driver.execute_async_script(_PIXEL, shot["data"]))

    def complaints(self) -> list[str]:
        """Return the new messages of the browser's console, and the addresses that it fetched beside the pages."""
        written = [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [*written, *(f"fetched {url}" for url in self._fetched())]

    def _fetched(self) -> Iterator[str]:
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent" and event["params"]["type"] != "Document":
                yield event["params"]["request"]["url"]


def found() -> tuple[str, str] | None:
    """Paths of the browser and its driver, or None unless both are installed."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, until it is no longer needed."""
    places = found()
    assert places, "chromium and chromedriver are needed; on Debian: apt-get install chromium chromium-driver"
    options = ChromeOptions()
    options.binary_location = places[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(places[1], log_output=os.devnull))
    try:
        opened = Browser(driver)
        driver.get("about:blank")
        opened.complaints()  # of the page that it starts with
        yield opened
    finally:
        driver.quit()
