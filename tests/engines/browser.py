"""Debian's Chromium, driven by its own chromedriver in the protocol of the W3C (WebDriver), without a library between."""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.process import wait_for

ANSWER_SECONDS = 60.0
PORT = re.compile(r"started successfully on port (\d+)")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--hide-scrollbars",
)  # fmt: skip


def missing() -> str:
    """Return what is not installed, in words; empty if nothing is missing."""
    names = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"not installed: {', '.join(names)} (apt-get install chromium chromium-driver)" if names else ""


class Browser:
    """One window."""

    def __init__(self, driver: str, session: str) -> None:
        self._base = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        call(f"{self._base}/url", {"url": url})

    def run(self, script: str) -> Any:
        """Return what the body of a function returns."""
        return call(f"{self._base}/execute/sync", {"script": script, "args": []})

    def text(self) -> str:
        """Return what a reader sees."""
        return str(self.run("return document.body.innerText"))

    def resize(self, width: int, height: int = 900) -> None:
        """Show the page as a screen of this many pixels; a window has a least width."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        call(f"{self._base}/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        call(f"{self._base}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def picture(self, *, is_whole: bool = True) -> bytes:
        """Return a picture of the page, or of what fits into the window, as PNG."""
        shot = {"cmd": "Page.captureScreenshot", "params": {"captureBeyondViewport": is_whole}}
        return base64.b64decode(call(f"{self._base}/goog/cdp/execute", shot)["data"])

    def complaints(self) -> list[str]:
        """Return what the console has had since the last call."""
        return [entry["message"] for entry in call(f"{self._base}/se/log", {"type": "browser"})]

    def see(self, *wanted: str) -> None:
        """Wait until a reader sees all of it."""
        wait_for(f"{wanted} on the page: {self.text()}", lambda: all(each in self.text() for each in wanted))


def call(url: str, body: Any = None, method: str = "") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method or None)
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        return json.load(answer)["value"]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield a window with an empty profile; all of it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="mpsd-browser-") as place:
        log = Path(place) / "log"
        with log.open("wb") as out:
            environ = {"PATH": "/usr/bin:/bin", "HOME": place}
            process = subprocess.Popen(["chromedriver", "--port=0"], stdout=out, stderr=out, env=environ)
        try:
            port = wait_for("chromedriver's port", lambda: PORT.search(log.read_text()))[1]
            options = {"args": [*FLAGS, f"--user-data-dir={place}/profile"], "binary": shutil.which("chromium")}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            driver = f"http://127.0.0.1:{port}"
            session = call(f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            try:
                yield Browser(driver, session)
            finally:
                call(f"{driver}/session/{session}", method="DELETE")
        finally:
            process.terminate()
            process.wait(ANSWER_SECONDS)
