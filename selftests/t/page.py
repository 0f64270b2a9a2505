# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The pages of `hetmem report --html` and `hetmem replay --html`, in FOLDER: their data, and in
a headless Chromium what a click, a drag and a hover do. tools-page.t made them.

page.py data FILE... only checks the data. page.py shoot FILE LIGHT.png DARK.png takes pictures.
"""

import json
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "selftests", "python"))
sys.path.insert(0, os.path.join(TOP, "selftests", "t"))
import tap  # noqa: E402


def read(path):
    """The data of a page, which has nothing that a browser would load or that ends the data."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert len(found) == 1 and not re.search("[<>&']", found[0]), path
    assert text.count("<script") == text.count("</script>") == 2, path
    # The name space of SVG is no address to load.
    assert re.findall(r"\w+://[^\"]*", text.replace(found[0], "")) == ["http://www.w3.org/2000/svg"], path
    assert not re.search(r"\b(src|href|import|fetch|url)\s*[=(](?!#)", re.sub(r"url\(#", "", text.replace(found[0], "")))
    assert "Content-Security-Policy" in text and "default-src 'none'" in text
    data = json.loads(found[0])
    check(data)
    return data


def check(data):
    assert isinstance(data["title"], str) and all(isinstance(line, str) for line in data["sub"])
    for finding in data["findings"]:
        assert finding["text"] and all(finding["lines"]) and all(finding["commands"])
    assert data["panels"]
    for panel in data["panels"]:
        assert panel["unit"] in ("s", "steps") and panel["end"] >= 0 and panel["limit"] >= 0
        sizes = {len(line["values"]) for line in panel["lines"]}
        assert len(sizes) <= 1, sizes
        for line in panel["lines"] + panel["bars"]:
            assert line["name"] and 0 <= line["colour"] <= 7 and min(line["values"]) >= 0
        heat = panel["heat"]
        if heat:
            assert len(heat["rows"]) == len(heat["cells"]) and len({len(row) for row in heat["cells"]}) == 1
            assert set("".join(heat["cells"])) <= {"."} | {key["mark"] for key in heat["keys"]}
        for table in panel["tables"]:
            for share, *cells in table["rows"]:
                # The last head is the bar's.
                assert 0 <= share <= 1 and len(cells) == len(table["head"]) - 1, table
            assert not table["rows"] or max(row[0] for row in table["rows"]) == 1


class Pages(tap.Case):
    dark = False

    def open(self, name):
        import browser

        self.path = os.path.join(FOLDER, name)
        self.data = read(self.path)
        page = browser.Browser(self.path, dark=self.dark)
        self.addCleanup(page.close)
        return page

    def good(self, page):
        """It ran without an error, and asked for nothing but itself."""
        self.assertEqual((page.errors, page.asked), ([], ["file://" + os.path.abspath(self.path)]))

    def range(self, page, number=0):
        text = page.value(f"document.querySelectorAll('.range')[{number}].textContent")
        return [float(word) for word in re.findall(r"[\d.]+", text)]

    def tip(self, page):
        return page.value("document.getElementById('tip').style.display === 'none' ? '' : "
                          "document.getElementById('tip').textContent").split("\n")

    def points(self, page):
        return page.value("document.querySelector('svg.lines polyline').getAttribute('points').split(' ').length")

    def zoom(self, page):
        begin, end = self.range(page)
        all_points = self.points(page)
        self.assertEqual(begin, 0)
        page.click("button.in")
        a, b = self.range(page)
        self.assertAlmostEqual((b - a) / end, 0.5, delta=0.02)
        self.assertLess(self.points(page), all_points * 0.6)
        page.click("button.right")
        self.assertGreater(self.range(page)[0], a)
        page.click("button.left")
        page.click("button.out")
        page.click("button.all")
        self.assertEqual(self.range(page), [begin, end])
        page.drag("svg.lines", 0.3, 0.5)
        a, b = self.range(page)
        self.assertTrue(0.2 < a / end < 0.3 and 0.4 < b / end < 0.5, (a, b, end))
        page.wheel("svg.lines", 0.5, -120)
        c, d = self.range(page)
        self.assertLess(d - c, b - a)
        page.wheel("svg.lines", 0.5, 120)
        page.wheel("svg.lines", 0.5, 120)
        self.assertGreater(self.range(page)[1] - self.range(page)[0], d - c)
        page.click("svg.lines", times=2)
        self.assertEqual(self.range(page), [begin, end])
        self.assertEqual(self.points(page), all_points)

    def hover(self, page):
        panel = self.data["panels"][0]
        page.hover("svg.lines", 0.5)
        lines = self.tip(page)
        for line in panel["lines"]:
            self.assertTrue(any(text.startswith(line["name"] + ": ") for text in lines), lines)
        # Beside the picture there is none.
        page.hover("#title", 0.9)
        self.assertEqual(self.tip(page), [""])
        page.hover("svg.heat", 0.5, 0.5)
        lines = self.tip(page)
        self.assertIn(lines[0], panel["heat"]["rows"])
        self.assertIn(lines[-1], ["nothing"] + [key["name"] for key in panel["heat"]["keys"]])

    def theme(self, page):
        back = "getComputedStyle(document.body).backgroundColor"
        before = page.value(back)
        page.click("#theme")
        after = page.value(back)
        self.assertNotEqual(before, after)
        page.click("#theme")
        self.assertEqual(page.value(back), before)
        return before

    def test_replay(self):
        page = self.open("replay.html")
        self.assertEqual([panel["limit"] > 0 for panel in self.data["panels"]], [False, True])
        self.assertEqual([len(panel["bars"]) for panel in self.data["panels"]], [0, 2])
        self.assertEqual(page.value("document.querySelectorAll('svg.lines').length"), 2)
        self.zoom(page)
        self.hover(page)
        self.assertEqual(self.theme(page), "rgb(255, 255, 255)")
        tables = page.value("document.querySelectorAll('section:first-of-type table').length")
        self.assertEqual(tables, 2)
        # Blocks at the peak are the same by both.
        by_size, by_class = (table["rows"] for table in self.data["panels"][0]["tables"])
        self.assertGreaterEqual(sum(int(row[2]) for row in by_class), sum(int(row[2]) for row in by_size))
        self.good(page)

    def test_report(self):
        page = self.open("report.html")
        self.zoom(page)
        self.hover(page)
        self.assertEqual(self.theme(page), "rgb(255, 255, 255)")
        self.good(page)

    def test_findings(self):
        page = self.open("report.html")
        commands = [command for finding in self.data["findings"] for command in finding["commands"]]
        self.assertTrue(commands)
        shown = page.value("[...document.querySelectorAll('code')].map((code) => code.textContent)")
        self.assertEqual(shown, commands)
        page.click("button.copy")
        self.assertIn(page.value("document.querySelector('button.copy').textContent"), ("copied", "selected"))
        self.assertEqual(page.value("getSelection().toString()"), commands[0])
        self.good(page)

    def test_dark(self):
        self.dark = True
        for name in ("report.html", "replay.html"):
            page = self.open(name)
            self.assertEqual(self.theme(page), "rgb(20, 24, 28)")
            self.good(page)

    def test_hostile_names(self):
        """Names of processes and specs are text."""
        for name in ("hostile.html", "tag.html"):
            page = self.open(name)
            self.assertEqual(page.value("document.querySelectorAll('#injected, img, iframe').length"), 0)
            text = page.value("document.body.innerText")
            self.assertIn("<b id=injected>", text)
            self.good(page)


if __name__ == "__main__":
    if sys.argv[1] == "data":
        for path in sys.argv[2:]:
            read(path)
    elif sys.argv[1] == "shoot":
        import browser

        for path, dark in ((sys.argv[3], False), (sys.argv[4], True)):
            page = browser.Browser(sys.argv[2], dark=dark)
            page.screenshot(path)
            page.close()
    else:
        FOLDER = sys.argv[1]
        sys.argv[1:] = []
        tap.main()
