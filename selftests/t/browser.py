# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""A headless Chromium for tests of pages, which is told what to do by a pipe."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile


class Browser:
    """A page in Chromium, 1200 x 1000. Requests for anything but @path and its data are @asked."""

    def __init__(self, path, dark=False):
        self.folder = tempfile.mkdtemp()
        to, self.write = os.pipe()
        self.read, back = os.pipe()
        command = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--window-size=1200,1000",
            f"--user-data-dir={self.folder}", "about:blank",
        ]

        def descriptors():
            # Both may lie at 3 or 4 already.
            a, b = os.dup(to), os.dup(back)
            os.dup2(a, 103)
            os.dup2(b, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=descriptors, start_new_session=True)
        os.close(to)
        os.close(back)
        self.number, self.session, self.rest = 0, None, b""
        self.errors, self.asked = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Page.enable", "Runtime.enable", "Network.enable", "Log.enable"):
            self.call(name)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.loaded = False
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        while not self.loaded:
            self.message()

    def message(self):
        while b"\0" not in self.rest:
            part = os.read(self.read, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        found = json.loads(text)
        method = found.get("method")
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(found["params"]["exceptionDetails"])
        elif method == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.errors.append(found["params"]["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(found["params"]["request"]["url"])
        return found

    def call(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.write, json.dumps(command).encode() + b"\0")
        while True:
            found = self.message()
            if found.get("id") == self.number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def box(self, selector):
        """The middle of an element, scrolled into view, and its size."""
        return self.value(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center" }});
            const box = element.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }})()""")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector, times=1):
        left, top, width, height = self.box(selector)
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.mouse(kind, left + width / 2, top + height / 2, button="left", clickCount=count)

    def drag(self, selector, begin, end):
        """From one share of the width to another."""
        left, top, width, height = self.box(selector)
        middle = top + height / 2
        self.mouse("mousePressed", left + begin * width, middle, button="left", clickCount=1)
        self.mouse("mouseMoved", left + (begin + end) / 2 * width, middle, button="left", buttons=1)
        self.mouse("mouseMoved", left + end * width, middle, button="left", buttons=1)
        self.mouse("mouseReleased", left + end * width, middle, button="left", clickCount=1)

    def hover(self, selector, across, down=0.5):
        left, top, width, height = self.box(selector)
        self.mouse("mouseMoved", left + across * width, top + down * height)

    def wheel(self, selector, across, turn):
        left, top, width, height = self.box(selector)
        self.mouse("mouseWheel", left + across * width, top + height / 2, deltaX=0, deltaY=turn)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        os.close(self.write)
        os.close(self.read)
        # Chromium's own processes write to the folder until they end.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
