"""A real browser for the tests: Debian's Chromium, without a screen and without a network."""

import base64
import contextlib
import json
import shutil
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--js-flags=--single-threaded",  # its helpers run at low priority: where all cores are busy, pages wait for minutes
)


def missing() -> str:
    """What keeps a browser from running here; empty if nothing."""
    absent = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def open_browser(profile: Path):
    """A browser with an empty profile; it logs its console and its requests."""
    options = Options()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def requests(driver) -> list[str]:
    """The addresses that pages asked for since the last call; the browser's own new tab asks for chrome://…."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [address for address in asked if not address.startswith(("chrome:", "chrome-untrusted:", "data:"))]


def set_view(driver, *, width: int, theme: str) -> None:
    """The width of the window, as a phone or a desktop has it, and the system's theme."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def screenshot(driver, path: Path) -> Path:
    """The whole page, beyond the window, as PNG."""
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(shot["data"]))
    return path
