#!/usr/bin/env python3
"""The page of kvhive serve in a real browser, beside a real daemon: what it shows, and that it can be used.

page_test.py BIN [OUT]     BIN: folder with kvhived and kvhive; OUT: where pictures go (build/page)
"""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from browser import Browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/bin")
OUT = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "build/page")
MODEL = ROOT / "models/demo"

# Every text against what lies behind it: WCAG's ratio, which should be 4.5 (large text: 3).
PALE_TEXTS = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll('body *')) {
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()) || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    if (node.closest('[aria-hidden=true], noscript, .hidden, .skip') || Number(style.opacity) < 1) continue;
    const [a, b] = [light(rgb(style.color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) found.push(`${ratio.toFixed(2)}: ${node.className || node.tagName} "${node.textContent.slice(0, 30)}"`);
  }
  return found;
})()"""


class Hive:
    """A daemon with two engines, and a service."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="kvhive-page-")
        self.environment = {**os.environ, "KVHIVE_SOCKET": f"{self.home}/kvhived.sock"}
        self.start_daemon()
        self.service = None
        self.start_service()

    def start_daemon(self, memory="24M", swap="0"):
        self.run("kvhived", "--model", MODEL, "--engines", "2", "--threads", "1", "--kv-cache-memory-bytes", memory, "--swap-space", swap,
                 "--log-level", "error", "--detach")

    def start_service(self, port=0):
        self.service = subprocess.Popen([BIN / "kvhive", "serve", "--port", str(port)], env=self.environment, stdout=subprocess.PIPE, text=True)
        self.port = int(self.service.stdout.readline().rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def run(self, program, *arguments):
        return subprocess.run([BIN / program, *arguments], env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def pids(self):
        """By name: keeper, engine 0, engine 1."""
        status = json.loads(self.run("kvhive", "pool", "procs", "--format", "json"))
        return {"keeper": status["keeper"]["pid"], **{f"engine {e['engine']}": e["pid"] for e in status["engines"]}}

    def stop_service(self):
        if self.service is not None:
            self.service.terminate()
            self.service.wait()
            self.service.stdout.close()
            self.service = None

    def close(self):
        self.stop_service()
        with contextlib.suppress(subprocess.CalledProcessError):
            self.run("kvhive", "stop")

    def complete(self, prompt, max_tokens):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.8}
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v1/completions", json.dumps(body))
            connection.getresponse().read()
        connection.close()


class Load:
    """Requests without end, most of which begin alike."""

    def __init__(self, hive, streams=6):
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(hive, i), daemon=True) for i in range(streams)]
        for thread in self.threads:
            thread.start()

    def work(self, hive, number):
        passage = (MODEL / "passage.txt").read_text()
        turn = 0
        while not self.ends.is_set():
            turn += 1
            prompt = passage[:800 + 100 * (number % 4)] if turn % 3 else passage[turn % 40 * 60:][:500]
            hive.complete(prompt + f" And {number} {turn}", 60 + 30 * (number % 3))

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


class PageTest(unittest.TestCase):
    """One story, in the order of the names: each test goes on where the one before it stopped."""

    @classmethod
    def setUpClass(cls):
        cls.hive = Hive()
        cls.addClassCleanup(cls.hive.close)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.open(cls.hive.url + "/")

    def setUp(self):
        self.may_complain = False

    def tearDown(self):
        hosts = {url.split("/")[2] for url in self.browser.requests if not url.startswith(("data:", "about:"))}
        self.assertEqual(hosts, {f"127.0.0.1:{self.hive.port}"}, "the page asks no other host")
        if not self.may_complain:
            self.assertEqual(self.browser.complaints, [], "the console is empty")
        self.browser.complaints.clear()

    def picture(self, name):
        self.browser.picture(OUT / f"{name}.png")

    def wait_turns(self, turns):
        """Until the page has asked the service so many times more."""
        now = self.browser.ask("Number(document.body.dataset.turns ?? 0)")
        self.browser.wait_for(f"Number(document.body.dataset.turns ?? 0) >= {now + turns}")

    def assert_readable(self):
        self.assertEqual(self.browser.ask(PALE_TEXTS), [])

    def assert_fits(self):
        self.assertLessEqual(self.browser.ask("document.documentElement.scrollWidth"), self.browser.ask("innerWidth"))

    def test_01_an_empty_pool_is_shown_as_free(self):
        self.browser.wait_for("document.querySelectorAll('.engine').length === 2")
        self.wait_turns(2)
        self.assertIn("free 100 %", self.browser.ask("document.getElementById('map').ariaLabel"))
        self.assertEqual(self.browser.ask("document.getElementById('live').dataset.state"), "live")
        self.assertTrue(self.browser.ask("document.getElementById('banner').hidden"))
        self.assertEqual(self.browser.ask("[...document.querySelectorAll('.views input')].map(i => i.value).join()"),
                         "state,owner,domain,age,sharing,tier")
        self.assert_readable()
        self.assert_fits()
        self.picture("01-empty")

    def test_02_a_loaded_hive_shows_its_work(self):
        type(self).load = Load(self.hive)
        self.browser.wait_for("[...document.querySelectorAll('.engine dd')].some(dd => Number(dd.textContent) > 0)")
        self.wait_turns(25)
        self.assertNotEqual(self.browser.ask("document.querySelector('.chart .value').textContent"), "0/s")
        self.assertTrue(self.browser.ask("document.querySelectorAll('.chart path.first').length > 3"))
        self.assertIn("uid-", self.browser.ask("document.getElementById('domains').textContent"))
        self.assert_readable()
        self.picture("02-loaded")

    def test_03_each_view_has_a_legend(self):
        for view, entry in {"owner": "engine 0", "domain": "domain uid-", "age": "idle, evicted next", "sharing": "held by 1 engine",
                            "tier": "device, in use", "state": "held by one"}.items():
            self.browser.ask(f"document.querySelector('.views input[value={view}]').click()")
            self.assertIn(entry, self.browser.ask("document.getElementById('legend').textContent"))
            if view in ("age", "owner", "domain", "sharing"):
                self.wait_turns(1)
                self.picture(f"03-by-{view}")

    def test_04_the_pointer_tells_of_a_cell(self):
        x, y = self.browser.ask("(() => { document.getElementById('map').scrollIntoView({block: 'center'}); const b = document.querySelector('canvas[data-tier]').getBoundingClientRect(); return [b.left + 30, b.top + 8]; })()")
        self.browser.point_at(x, y)
        self.browser.wait_for("/^Blocks? [0-9,]+/.test(document.getElementById('readout').textContent)")
        x, y = self.browser.ask("(() => { scrollTo(0, 0); const b = document.querySelector('.chart svg').getBoundingClientRect(); return [b.right - 8, b.top + 20]; })()")
        self.browser.point_at(x, y)
        self.browser.wait_for("document.querySelector('.chart .cross') !== null")
        self.browser.point_at(2, 2)

    def test_05_the_keyboard_is_enough(self):
        self.browser.ask("document.activeElement.blur(); scrollTo(0, 0)")
        visited = []
        for _ in range(60):
            self.browser.press("Tab")
            visited.append(self.browser.ask("document.activeElement.id || document.activeElement.name || document.activeElement.className || document.activeElement.tagName"))
            style = self.browser.ask("(() => { const n = document.activeElement; const s = getComputedStyle(n.type === 'radio' ? n.nextSibling : n); return s.outlineStyle + s.outlineWidth; })()")
            self.assertEqual(style, "solid3px", f"focus shows on {visited[-1]}")
            if visited[-1] == "map":
                break
        self.assertEqual(visited[0], "skip")
        self.assertEqual(visited[-1], "map")
        self.assertIn("by", visited, "the views come before the map")
        told = lambda: self.browser.ask("document.getElementById('spoken').textContent")
        self.browser.press("Home")
        self.assertRegex(told(), r"^Block 1 ")
        self.browser.press("ArrowRight")
        self.assertRegex(told(), r"^Block 2 ")
        self.browser.press("ArrowDown")
        self.assertRegex(told(), r"^Block \d\d+ ")
        self.picture("05-keyboard")
        self.browser.press("End")
        last = self.browser.ask("Number(document.getElementById('spoken').textContent.match(/Block ([0-9,]+)/)[1].replace(',', ''))")
        self.assertGreater(last, 100)
        self.browser.press("ArrowRight")
        self.assertIn(f"{last:,}", told(), "there is nothing behind the end")
        self.browser.press("Tab", shift=True)
        self.browser.press("ArrowRight")
        self.assertEqual(self.browser.ask("document.querySelector('.views input:checked').value"), "owner")
        self.browser.press("ArrowLeft")

    def test_06_the_map_is_told_in_words(self):
        self.browser.ask("document.getElementById('map-text').open = true")
        self.browser.wait_for("document.getElementById('map-words').textContent.includes('By state: ')")
        self.assertIn("By tier: ", self.browser.ask("document.getElementById('map-words').textContent"))
        self.browser.ask("document.getElementById('map-text').open = false")

    def test_07_dark(self):
        self.browser.prefer(color_scheme="dark")
        self.wait_turns(2)
        self.assert_readable()
        self.picture("07-dark")

    def test_08_a_phone(self):
        self.browser.resize(390, 844, is_phone=True)
        self.wait_turns(2)
        self.assert_fits()
        self.picture("08-phone-dark")
        self.browser.prefer(color_scheme="light")
        self.wait_turns(1)
        self.picture("08-phone")
        self.browser.resize(1280, 900)

    def test_09_without_motion(self):
        self.browser.prefer(reduced_motion="reduce")
        self.assertIn(self.browser.ask("getComputedStyle(document.querySelector('.bar i')).transitionProperty"), ("none", "all"))
        self.assertEqual(self.browser.ask("getComputedStyle(document.querySelector('.bar i')).transitionDuration"), "0s")
        self.browser.prefer(reduced_motion="no-preference")

    def test_10_a_killed_engine_is_dead_then_back_and_its_cost_is_told(self):
        pids = self.hive.pids()
        os.kill(pids["keeper"], signal.SIGSTOP)  # nobody starts it again meanwhile
        try:
            os.kill(pids["engine 0"], signal.SIGKILL)
            self.browser.wait_for("document.querySelector('.engine[data-engine=\"0\"][data-well=false] .state')?.textContent.includes('dead')")
            self.browser.wait_for("document.getElementById('banner-title').textContent === 'The daemon does not answer.'")
            self.assert_readable()
            self.picture("10-engine-dead")
        finally:
            os.kill(pids["keeper"], signal.SIGCONT)
        self.browser.wait_for("document.querySelector('.engine[data-engine=\"0\"][data-well=true] .state')?.textContent.includes('back')")
        self.browser.wait_for("document.getElementById('banner').hidden")
        self.browser.wait_for("/It had \\d+ request.*was back within/.test(document.getElementById('ends').textContent)")
        self.assertRegex(self.browser.ask("document.getElementById('ends').textContent"), r"Engine 0, \d\d:\d\d:\d\d\. It had \d+ request")
        self.assertIn("restarted once", self.browser.wait_for("document.querySelector('.engine[data-engine=\"0\"]').textContent"))
        self.wait_turns(3)
        self.picture("10-engine-back")

    def test_11_a_prompt_is_answered(self):
        self.load.stop()
        self.browser.ask("document.getElementById('prompt').focus()")
        self.browser.ask("document.getElementById('prompt-send').click()")
        self.browser.wait_for("document.getElementById('prompt-cost').textContent.includes('from the cache')")
        self.assertTrue(self.browser.ask("document.getElementById('prompt-stop').hidden"))
        self.assertGreater(self.browser.ask("document.getElementById('answer').textContent.length"), 100)
        self.picture("11-prompt")

    def test_12_a_stopped_daemon_is_said_and_the_data_is_old(self):
        self.hive.run("kvhive", "stop")
        self.browser.wait_for("document.getElementById('banner-title').textContent === 'The daemon is away.'")
        self.browser.wait_for("/^data [0-9]+ s old$/.test(document.getElementById('live-text').textContent)")
        self.assertIn("old", self.browser.ask("document.getElementById('banner-text').textContent"))
        self.picture("12-daemon-away")
        self.browser.open(self.hive.url + "/")  # who comes now sees no data at all
        self.browser.wait_for("document.getElementById('map')?.textContent.includes('There is no pool')")
        self.picture("12-daemon-away-from-the-start")
        self.hive.start_daemon()
        self.browser.wait_for("document.getElementById('banner')?.hidden && document.querySelectorAll('.engine').length === 2")

    def test_13_a_large_pool_of_two_tiers_has_cells_of_several_blocks(self):
        self.hive.run("kvhive", "stop")
        self.hive.start_daemon("160M", "40M")
        self.browser.wait_for("document.querySelectorAll('#map canvas').length === 2")
        load = Load(self.hive)
        self.wait_turns(12)
        self.assertIn("One cell is 4 blocks", self.browser.ask("document.getElementById('map-scale').textContent"))
        self.browser.ask("document.getElementById('map').focus()")
        self.browser.press("End")
        self.assertRegex(self.browser.ask("document.getElementById('spoken').textContent"), r"^Blocks [0-9,]+ to [0-9,]+ \(host tier\)")
        self.browser.press("Home")
        self.picture("13-two-tiers")
        load.stop()

    def test_14_a_service_that_ended_is_said(self):
        self.may_complain = True  # browsers write of each request that fails
        port = self.hive.port
        self.hive.stop_service()
        self.browser.wait_for("document.getElementById('banner-title').textContent === 'The service does not answer.'")
        self.assert_readable()
        self.picture("14-service-away")
        self.hive.start_service(port)
        self.browser.wait_for("document.getElementById('banner').hidden")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2, failfast=True)
