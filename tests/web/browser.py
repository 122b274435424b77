"""Chromium without a window, driven by ChromeDriver with the requests of WebDriver."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

IS_INSTALLED = bool(shutil.which("chromium") and shutil.which("chromedriver"))
# Chromium of its own accord asks servers of its maker.
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


@dataclass(frozen=True, slots=True)
class Browser:
    """A window of Chromium."""

    session: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a command of WebDriver, and return its value."""
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = Request(
            f"{self.session}/{path}".rstrip("/"), data, {"Content-Type": "application/json"}, method=method
        )
        with urlopen(request, timeout=120) as response:
            return json.load(response)["value"]

    def open(self, url: str) -> None:
        """Show a page as if it was opened for the first time."""
        self.ask("POST", "url", {"url": "about:blank"})
        self.ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of an expression of JavaScript."""
        return self.ask("POST", "execute/sync", {"script": f"return ({script});", "args": list(arguments)})

    def wait(self, script: str, *arguments: Any) -> Any:
        """Wait until an expression is true, and return its value."""
        until = time.monotonic() + 60
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < until, (script, self.errors())
            time.sleep(0.05)
        return found

    def errors(self) -> list[str]:
        """Return the errors that were written to the console since the last call."""
        found = self.ask("POST", "se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] == "SEVERE"]

    def shoot(self, picture: Path) -> None:
        """Write a picture of the window."""
        picture.write_bytes(base64.b64decode(self.ask("GET", "screenshot")))


@contextmanager
def opened(size: str = "1200,820", *, is_dark: bool = False) -> Iterator[Browser]:
    """Open a window of this size."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Chromium still writes into its folder when its driver has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = ["chromedriver", f"--port={port}", "--silent"]
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            colours = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
            options = {"args": [*FLAGS, colours, f"--window-size={size}", f"--user-data-dir={folder}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            server = Browser(f"http://127.0.0.1:{port}")
            until = time.monotonic() + 60
            while True:
                try:
                    found = server.ask("POST", "session", {"capabilities": {"alwaysMatch": wanted}})
                    break
                except (URLError, ConnectionError):
                    assert time.monotonic() < until
                    time.sleep(0.1)
            window = Browser(f"{server.session}/session/{found['sessionId']}")
            try:
                yield window
            finally:
                window.ask("DELETE", "")
        finally:
            # Chromium, too, if it was not closed.
            os.killpg(driver.pid, signal.SIGTERM)
            driver.wait()
