"""A headless Chromium for tests, driven over its debugging pipe; a test is skipped where there is none."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest


class Browser:
    """One page at a time. Collects what its console says and what it asks for."""

    def __init__(self, profile):
        binary = shutil.which("chromium") or shutil.which("google-chrome")
        if binary is None:
            pytest.skip("no Chromium here; on Debian: apt-get install chromium")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def connect():
            ours = os.dup(to_read), os.dup(to_write)
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        flags = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        )
        self.process = subprocess.Popen(
            [binary, *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", None
        self.troubles, self.requests = [], []

    @contextmanager
    def page(self):
        """This browser with an empty page, which shares nothing with the one before, until the end of the block."""
        self.troubles, self.requests = [], []
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        page = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        yield self
        self._session = None
        self.ask("Target.disposeBrowserContext", browserContextId=context)

    def ask(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        event = json.loads(message)
        if event.get("sessionId") != self._session:  # of a page before
            return event
        match event.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.troubles.append(event["params"])
            case "Runtime.consoleAPICalled" if event["params"]["type"] in ("error", "warning"):
                self.troubles.append(event["params"])
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
        return event

    def evaluate(self, script):
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script):
        """Waits in the page until an expression is true."""
        promise = (
            f"new Promise((done) => {{ const look = () => ({script}) ? done(true) : setTimeout(look, 50); look(); }})"
        )
        return self.evaluate(promise)

    def show(self, url, *, width=1200, height=900, theme="light", shows="h2"):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.ask("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.querySelector('" + shows + "')")

    def picture(self, path):
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def fits(self):
        """Whether the page is no wider than its window."""
        return self.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def barriers(self, axe):
        """What axe-core, of which this is the script, says would keep somebody from using the page."""
        self.evaluate(axe)
        found = self.evaluate("axe.run().then(({ violations }) => violations)")
        return [each for each in found if each["impact"] in ("serious", "critical")]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._read)
        os.close(self._write)
