"""A headless Chromium, asked over a pipe in Chrome's DevTools protocol: no driver, no library."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers import axe
from tests.support.servers.debian import install

_PACKAGES = ("chromium", "fonts-dejavu-core")
_ANSWER_MAX_S = 180.0
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
          "--no-first-run", "--disable-background-networking", "--disable-component-update", "about:blank")  # fmt: skip

Row = dict[str, Any]


def program() -> str:
    """Debian's Chromium. NotInstalledError."""
    return install("chromium", _PACKAGES)


@dataclass(slots=True)
class Browser:
    """One process. What it says by itself is kept in `said`."""

    reading: int
    writing: int
    said: list[Row] = field(default_factory=list)
    _asked: int = 0
    _rest: bytes = b""

    def ask(self, method: str, session: str | None = None, /, **parameters: Any) -> Row:
        """Its answer; AssertionError: it refuses."""
        self._asked += 1
        number, about = self._asked, {} if session is None else {"sessionId": session}
        message = {"id": number, "method": method, "params": parameters, **about}
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda one: one.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def wait_for(self, method: str, session: str) -> None:
        """Until it says this, if it has not since it was asked last."""
        if not any(one.get("method") == method and one.get("sessionId") == session for one in self.said):
            self._wait(lambda one: one.get("method") == method and one.get("sessionId") == session)

    def _wait(self, is_it: Any) -> Row:
        until = time.monotonic() + _ANSWER_MAX_S
        while True:
            head, found, rest = self._rest.partition(b"\0")
            if found:
                self._rest = rest
                message: Row = json.loads(head)
                if "method" in message:
                    self.said.append(message)
                if is_it(message):
                    return message
                continue
            ready, _, _ = select.select([self.reading], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self.reading, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`. NotInstalledError."""
    command = [program(), f"--user-data-dir={folder}", *_FLAGS]
    to_it, writing = os.pipe()
    reading, from_it = os.pipe()
    shell = ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "bash", *command]
    with subprocess.Popen(
        shell, pass_fds=(to_it, from_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        os.close(to_it)
        os.close(from_it)
        try:
            yield Browser(reading, writing)
        finally:
            process.terminate()
            process.wait(30)
            os.close(reading)
            os.close(writing)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStorage:
    """How a page is looked at."""

    width: int = 1280
    dark: bool = False
    script: bool = True

    def __str__(self) -> str:
        return f"{self.width}{'-dark' if self.dark else ''}{'' if self.script else '-noscript'}"


class Page:
    """A tab. `private`: with cookies of its own."""

    def __init__(self, browser: Browser, look: SnapshotStorage, *, private: bool = False) -> None:
        self._browser, self.look = browser, look
        context = browser.ask("Target.createBrowserContext") if private else {}
        self._target = browser.ask("Target.createTarget", url="about:blank", **context)["targetId"]
        attached = browser.ask("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM", "Network", "Audits"):
            self.ask(f"{domain}.enable")
        phone = look.width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=look.width, height=900, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not look.script)

    def ask(self, method: str, **parameters: Any) -> Row:
        return self._browser.ask(method, self._session, **parameters)

    def open(self, url: str) -> int:
        """Shows an address; the status of its answer."""
        self._browser.said.clear()
        self.ask("Page.navigate", url=url)
        return self.loaded()

    def loaded(self) -> int:
        """Waits until a page is there; the status of its answer."""
        self._browser.wait_for("Page.loadEventFired", self._session)
        answers = [one["params"] for one in self._said("Network.responseReceived")]
        return int([a["response"]["status"] for a in answers if a["type"] == "Document"][-1])

    def _said(self, *methods: str) -> list[Row]:
        said = self._browser.said
        return [one for one in said if one.get("sessionId") == self._session and one["method"] in methods]

    @property
    def problems(self) -> list[str]:
        """What the browser complains of: errors, warnings, violations of the content security policy."""
        found = [str(m["params"]["exceptionDetails"]) for m in self._said("Runtime.exceptionThrown")]
        found += [str(m["params"]["args"]) for m in self._said("Runtime.consoleAPICalled")]
        entries = [m["params"]["entry"] for m in self._said("Log.entryAdded")]
        found += [f"{e['level']}: {e['text']}" for e in entries if e["level"] in ("error", "warning")]
        issues = [m["params"]["issue"] for m in self._said("Audits.issueAdded")]
        return found + [f"issue: {i['code']} {json.dumps(i['details'])}" for i in issues]

    @property
    def html(self) -> str:
        """The page as the browser has it."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        return str(self.ask("DOM.getOuterHTML", nodeId=root)["outerHTML"])

    def element(self, selector: str) -> int:
        """The first such element; AssertionError: there is none."""
        found = self._found(selector)
        assert found, selector
        return found

    def _found(self, selector: str) -> int:
        """The first such element; 0: there is none."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        return int(self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"])

    def too_wide(self) -> int:
        """By how many pixels the page is wider than the window."""
        content = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return max(0, round(float(content["width"])) - self.look.width)

    def open_details(self) -> None:
        """Unfolds everything."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        for node in self.ask("DOM.querySelectorAll", nodeId=root, selector="details")["nodeIds"]:
            self.ask("DOM.setAttributeValue", nodeId=node, name="open", value="")

    def violations(self) -> list[Any]:
        """Of the rules of axe; scripts must be on."""
        self.ask("Runtime.evaluate", expression=axe.source())
        answer = self.ask("Runtime.evaluate", expression=axe.question(), awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return axe.violations(answer["result"]["value"])

    def type(self, text: str) -> None:
        """Into what has the focus, then Enter; waits for the next page. An element with `autofocus` has it from the
        first frame on, which may be drawn after the page's load event."""
        self._until_focused()
        self.ask("Input.insertText", text=text)
        self._press()

    def _until_focused(self) -> None:
        until = time.monotonic() + _ANSWER_MAX_S
        while not self._found(":focus"):
            assert time.monotonic() < until, "nothing has the focus"
            time.sleep(0.02)

    def press(self, selector: str) -> int:
        """A button, by the keyboard; the status of the page behind it."""
        self.ask("DOM.focus", nodeId=self.element(selector))
        self._until_focused()  # a key before it is lost
        return self._press()

    def _press(self) -> int:
        self._browser.said.clear()
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, **enter)
        return self.loaded()

    def picture(self, path: Path) -> None:
        """The whole page."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)
