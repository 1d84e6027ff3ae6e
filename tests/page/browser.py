"""A headless Chromium, driven over two pipes (--remote-debugging-pipe: JSON, each message ends with NUL). Python's own library only."""
import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chrome-headless-shell")
PATIENCE = 30  # seconds; longer than anything takes that works


class BrowserError(Exception):
    pass


def find_browser():
    for name in PROGRAMS:
        if path := shutil.which(name):
            return path
    raise BrowserError(f"none of {', '.join(PROGRAMS)} is installed")


class Browser:
    """One browser with one page. Collects what the page asks for and what it complains of."""

    def __init__(self, width=1280, height=900):
        self.requests, self.complaints = [], []
        self._number, self._answers, self._buffer = 0, {}, b""
        self._home = tempfile.mkdtemp(prefix="kvhive-browser-")
        self._start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def _start(self):
        self._session = None
        # Descriptors 3 and 4 are the browser's ends; none of ours may have these numbers when it starts.
        held = [os.open(os.devnull, os.O_RDONLY)]
        while held[-1] < 10:
            held.append(os.open(os.devnull, os.O_RDONLY))
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()

        def give_ends():
            os.dup2(to_browser, 3)
            os.dup2(to_us, 4)

        command = [find_browser(), "--remote-debugging-pipe", "--headless", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", f"--user-data-dir={self._home}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        self._process = subprocess.Popen(command, preexec_fn=give_ends, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for descriptor in (*held, to_browser, to_us):
            os.close(descriptor)
        self._in, self._out = from_us, from_browser

    def close(self):
        with contextlib.suppress(OSError, BrowserError):
            self.send("Browser.close", session=False)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    # -- messages ---------------------------------------------------------------------------------

    def send(self, method, session=True, **parameters):
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session and self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._in, data):]
        end = time.monotonic() + PATIENCE
        while number not in self._answers:
            self._read(end - time.monotonic())
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self, seconds):
        if seconds <= 0 or not select.select([self._out], [], [], seconds)[0]:
            raise BrowserError("the browser does not answer")
        got = os.read(self._out, 1 << 20)
        if not got:
            raise BrowserError("the browser has ended")
        *messages, self._buffer = (self._buffer + got).split(b"\0")
        for message in messages:
            self._take(json.loads(message))

    def _take(self, message):
        if "id" in message:
            self._answers[message["id"]] = message
            return
        told = message.get("params", {})
        match message["method"]:
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{told['entry']['text']} ({told['entry'].get('url', '')})")

    # -- the page ---------------------------------------------------------------------------------

    def open(self, url):
        self.send("Page.navigate", url=url)

    def ask(self, expression):
        """The value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait_for(self, expression, seconds=PATIENCE):
        """Waits until the expression is true, or something that counts as true, and returns it."""
        end = time.monotonic() + seconds
        while not (value := self.ask(expression)):
            if time.monotonic() > end:
                raise BrowserError(f"never came true: {expression}")
            time.sleep(0.05)
        return value

    def resize(self, width, height, is_phone=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)

    def prefer(self, **features):
        """prefer(color_scheme="dark", reduced_motion="reduce")"""
        self.send("Emulation.setEmulatedMedia", features=[{"name": f"prefers-{name.replace('_', '-')}", "value": value}
                                                         for name, value in features.items()])

    def press(self, key, shift=False):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36,
                 "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        text = {"Enter": "\r", " ": " "}.get(key)
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **about, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def point_at(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path, whole=True):
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))
