"""The page works in a browser: cells, what they open, keyboard, colours, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.reports.formats import Target, render
from tests.reports.chromium import PROGRAM, Browser, browser
from tests.reports.documents import hostile, sample, with_baseline

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs chromium, which Debian packages and .ci/run installs"
)

CELLS = """
[...document.querySelectorAll("tbody tr")].map(
  row => [...row.querySelectorAll("button")].map(button => button.innerText))
"""
FOCUS = "document.activeElement.getAttribute('popovertarget') || document.activeElement.tagName"
OPEN = "[...document.querySelectorAll(':popover-open')].map(each => each.id)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def show(chromium: Browser, tmp_path: Path, document: dict[str, Any]) -> None:
    page = tmp_path / "matrix.html"
    page.write_text(render("html", "matrix", document, Target()), encoding="utf-8")
    chromium.open(page)


def opened(chromium: Browser, tree: str, seam: str) -> str:
    """Press a cell and give what is shown then."""
    chromium.value(f"""
        columns = [...document.querySelectorAll("thead th")].map(each => each.innerText);
        row = [...document.querySelectorAll("tbody tr")].find(
          row => row.querySelector("th").innerText == {tree!r});
        row.querySelectorAll("th, td")[columns.indexOf({seam!r})].querySelector("button").click()
    """)
    (shown,) = chromium.value(OPEN)
    text: str = chromium.value(f"document.getElementById('{shown}').innerText")
    return text


def test_every_cell_says_its_status(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, tmp_path, sample())
    rows = chromium.value(CELLS)
    for row, result in zip(rows, sample()["results"], strict=True):
        assert row[0] == result["name"]
        if "error" in result:
            assert row[1:] == ["not examined"]
        else:
            said = [re.split(r" \(|,", cell)[0] for cell in row[1:]]
            wanted = [outcome["status"] for outcome in result["outcomes"]]
            assert said[: len(wanted)] == wanted
    assert rows[0][6] == "pending, 1 failed"
    assert rows[1][3] == "upstream (2 gaps)"


def test_a_cell_opens_its_reason_evidence_and_diff(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, tmp_path, sample())
    conflict = opened(chromium, "main", "device_dispatch")
    # What two trees share is said once, of both.
    assert conflict.split("\n")[1].endswith("device_dispatch on main, release/fork")
    evidence = sample()["results"][3]["outcomes"][3]["evidence"]
    for part in ("sought", "expected", "found", "action"):
        assert evidence[part] in " ".join(conflict.split())
    assert "reason of withheld" in opened(chromium, "v0.5.9", "backend_lists")
    diff = opened(chromium, "v0.5.12", "device_dispatch")
    assert "+++ b/fork/sglang/srt/utils/common.py" in diff
    assert "server_args.py" not in diff
    assert "@@ -0,0 +1" in opened(chromium, "v0.5.12", "npu_ops")
    checked = opened(chromium, "v0.5.12", "sampler")
    assert "fail: sampler.draws" in checked
    assert "== draw(b, a)" in checked
    assert "pass: sampler.compiles" in checked
    assert "no deterministic inference" in opened(chromium, "v0.5.2", "tree")
    assert "pass: series.changes_nothing_else" in opened(chromium, "v0.5.12", "series")


def test_news_are_marked(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, tmp_path, with_baseline())
    assert chromium.value(CELLS)[4][4] == "conflict, new"
    assert "pending before" in opened(chromium, "release/fork", "device_dispatch")
    assert "Move the dispatch elsewhere" in chromium.value("document.querySelector('ul').innerText")


def test_the_keyboard_reaches_and_opens_every_cell(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, tmp_path, sample())
    wanted = chromium.value(
        "[...document.querySelectorAll('table button')].map(b => b.getAttribute('popovertarget'))"
    )
    reached = []
    # The region of the table is reached first, so that arrow keys scroll it.
    chromium.press("Tab")
    assert chromium.value(FOCUS) == "DIV"
    for _ in wanted:
        chromium.press("Tab")
        reached.append(chromium.value(FOCUS))
    assert reached == wanted

    last = reached[-1]
    chromium.press("Enter")
    assert chromium.value(OPEN) == [last]
    assert chromium.value("document.activeElement.className") == "close"
    assert chromium.value("document.activeElement.matches(':focus-visible')") is True
    chromium.press("Escape")
    assert chromium.value(OPEN) == []
    assert chromium.value(FOCUS) == last
    assert chromium.value("document.activeElement.closest('table') !== null") is True
    chromium.press("Enter")
    chromium.press("Enter")
    assert chromium.value(OPEN) == []
    assert chromium.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("document", [sample(), with_baseline(), hostile()])
def test_the_page_asks_for_nothing_and_runs_nothing(
    chromium: Browser, tmp_path: Path, document: dict[str, Any]
) -> None:
    show(chromium, tmp_path, document)
    chromium.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    asked = [p["request"]["url"] for m, p in chromium.events if m == "Network.requestWillBeSent"]
    assert asked == [(tmp_path / "matrix.html").as_uri()]
    # The browser logs what the page's policy had to stop.
    assert not [p for m, p in chromium.events if m in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert chromium.value("typeof hacked") == "undefined"
    assert chromium.value("document.querySelectorAll('script, img, a, iframe').length") == 0
    assert chromium.value("document.title").startswith("sgl-npu-patch: ")


def test_the_policy_stops_what_escaping_might_miss(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "matrix.html"
    added = "<script>hacked=1</script><img src='x' onerror='hacked=1'><p style='color: red' id=p>"
    page.write_text(
        render("html", "matrix", sample(), Target()).replace("</main>", f"{added}</main>"),
        encoding="utf-8",
    )
    chromium.open(page)
    assert chromium.value("typeof hacked") == "undefined"
    assert (
        chromium.value("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    )
    assert [p for m, p in chromium.events if m == "Log.entryAdded"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    show(chromium, tmp_path, sample())
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    chromium.call("Emulation.setEmulatedMedia", features=media)
    colours = chromium.value("""
        [...document.querySelectorAll("tbody td")].map(cell => [
          getComputedStyle(cell.querySelector("button") || cell).color,
          getComputedStyle(cell).backgroundColor,
          cell.className])
    """)
    page = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (_luminance(page) > 0.5) is (scheme == "light")
    seen = {name for *_, name in colours}
    statuses = {"pending", "already", "upstream", "not-needed", "withheld", "conflict"}
    assert seen - {""} == statuses | {"failed", "error"}
    assert len({background for _, background, name in colours if name}) == 5
    for text, background, name in colours:
        if name:
            assert _contrast(text, background) >= 7, (name, text, background)


def _contrast(one: str, other: str) -> float:
    """Give the ratio that the Web Content Accessibility Guidelines define."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
