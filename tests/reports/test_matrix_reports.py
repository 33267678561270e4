"""Every report of a matrix says the same, and foreign text is harmless in each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from io import StringIO
from typing import IO, Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from sgl_npu_patch.reports import formats
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.plain import visible
from tests.reports.documents import HOSTILE, hostile, judged, matrix, sample, with_baseline

Document = dict[str, Any]
Verdicts = dict[tuple[str, str], str]


def render(form: str, document: Document, stream: IO[str] | None = None) -> str:
    return formats.render(form, "matrix", document, Target(stream))


FORMS = [form for form in formats.formats_of("matrix") if form != "json"]

_ANSI = re.compile(r"\x1b\[[\d;]*m")


def expected(document: Document) -> Verdicts:
    """Read the statuses from the document itself; a tree that was not judged has one of no seam."""
    found: Verdicts = {}
    for result in document["results"]:
        name = visible(result["name"])
        if "error" in result:
            found[name, ""] = "error"
        for outcome in result["outcomes"]:
            found[name, outcome["seam"]] = outcome["status"]
    return found


def troubles(document: Document) -> set[tuple[str, str]]:
    """Name all that the formats for trouble alone must name."""
    statuses = expected(document)
    found = {key for key, status in statuses.items() if status in ("error", "conflict")}
    for result in document["results"]:
        failed = [check for check in result.get("checks", ()) if check["verdict"] == "fail"]
        found |= {(visible(result["name"]), check["id"]) for check in failed}
    return found


class Terminal(StringIO):
    """Take part as a terminal does."""

    def isatty(self) -> bool:
        return True


def of_text(printed: str) -> Verdicts:
    """Read the tables; where they are printed in parts, their headings stand over each part."""
    found: Verdicts = {}
    for block in _ANSI.sub("", printed).split("\n\n")[1:]:
        lines = block.split("\n")
        heads = [i for i, line in enumerate(lines) if line.startswith("tree ")]
        if not heads:
            continue
        (head,) = heads
        starts = [m.start() for m in re.finditer(r"\S+", lines[head])]
        parts = [_fields(line, starts) for line in lines[: head + 1]]
        columns = ["".join(column) for column in zip(*parts, strict=True)]
        for line in lines[head + 1 :]:
            name, *words = _fields(line, starts)
            for column, word in zip(columns[1:], words, strict=True):
                if word == "-":
                    found[name, ""] = "error"
                elif word and column != "checks":
                    found[name, column] = word.rstrip("*")
    return found


def _fields(line: str, starts: list[int]) -> list[str]:
    return [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]


def of_markdown(text: str) -> Verdicts:
    found: Verdicts = {}
    rows = [*_rows(text)]
    columns = rows[0][1:]
    for name, *cells in rows[1:]:
        for column, cell in zip(columns, cells, strict=True):
            if cell == "-":
                found[name, ""] = "error"
            elif cell and column != "checks":
                found[name, column] = cell.split(" (")[0]
    return found


def _rows(text: str) -> Iterator[list[str]]:
    """Give the cells of the one table, as a reader sees them."""
    row: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            yield row
        elif token.type == "inline" and token.level > 2:
            row.append("".join(child.content for child in token.children or ()))


def of_junit(text: str) -> Verdicts:
    found: Verdicts = {}
    root = ElementTree.fromstring(text)  # noqa: S314  # our own output
    for suite in root:
        for case in suite:
            name, case_name = suite.attrib["name"], case.attrib["name"]
            printed = case.find("system-out")
            if case.find("error") is not None or case_name == "tree":
                found[name, ""] = "error"
            elif printed is not None:
                assert printed.text is not None
                found[name, case_name] = re.split(r"[ :\n]", printed.text)[0]
    return found


class Page(HTMLParser):
    """Read the table of the page, and note every tag and attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def of_html(text: str) -> Verdicts:
    found: Verdicts = {}
    (_, *columns), *rows = Page(text).rows
    for name, *cells in rows:
        if cells == ["not examined"]:
            found[name, ""] = "error"
            continue
        for column, cell in zip(columns, cells, strict=True):
            if cell and column != "series":
                found[name, column] = re.split(r" \(|,", cell)[0]
    return found


def of_sarif(text: str) -> set[tuple[str, str]]:
    (run,) = json.loads(text)["runs"]
    return {
        (name, trouble)
        for result in run["results"]
        for name in result["properties"]["trees"]
        for trouble in _troubles(result["ruleId"])
    }


def of_github(text: str) -> set[tuple[str, str]]:
    found = set()
    for line in text.splitlines():
        level, properties, message = _command(line)
        if "new since" not in properties["title"] and "\n" in message:
            assert level in ("error", "notice")
            names = [each[3:] for each in message.split("\n") if each.startswith("in ")]
            found |= {(name, each) for name in names for each in _troubles(properties["title"])}
    return found


def _troubles(title: str) -> list[str]:
    if title == "not examined":
        return [""]
    return title.removeprefix("conflict in ").removeprefix("failed check ").split(", ")


def _command(line: str) -> tuple[str, dict[str, str], str]:
    """Read a workflow command as GitHub's runner does."""
    matched = re.fullmatch(r"::(\w+) ((?:\w+=[^,:]*,?)+)::([^\r\n]*)", line)
    assert matched is not None, line
    properties = dict(part.split("=", 1) for part in matched[2].split(","))
    return matched[1], {k: _decoded(v) for k, v in properties.items()}, _decoded(matched[3])


def _decoded(text: str) -> str:
    for code, character in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(code, character)
    return text


STATUSES: dict[str, Callable[[str], Verdicts]] = {
    "html": of_html,
    "junit": of_junit,
    "markdown": of_markdown,
    "text": of_text,
}
TROUBLES: dict[str, Callable[[str], set[tuple[str, str]]]] = {
    "github": of_github,
    "sarif": of_sarif,
}


@pytest.mark.parametrize("document", [sample(), with_baseline()], ids=["alone", "baseline"])
@pytest.mark.parametrize("form", STATUSES)
def test_statuses_agree(form: str, document: Document) -> None:
    assert STATUSES[form](render(form, document)) == expected(document)


@pytest.mark.parametrize("form", ["html", "junit", "markdown"])
def test_statuses_agree_whatever_trees_are_called(form: str) -> None:
    wanted = expected(hostile())
    if form == "markdown":
        # A cell would end at a bar.
        wanted = {(name.replace("|", "\\x7c"), seam): said for (name, seam), said in wanted.items()}
    assert STATUSES[form](render(form, hostile())) == wanted


@pytest.mark.parametrize("document", [sample(), with_baseline(), hostile()])
@pytest.mark.parametrize("form", TROUBLES)
def test_troubles_agree(form: str, document: Document) -> None:
    assert TROUBLES[form](render(form, document)) == troubles(document)


def test_a_narrow_terminal_gets_the_table_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    printed = _ANSI.sub("", render("text", sample(), Terminal()))
    assert max(map(len, printed.split("\npending: ")[0].split("\n")[1:])) <= 50
    assert of_text(printed) == expected(sample())


def test_the_table_of_all_releases_fits_on_a_screen() -> None:
    names = [f"0.5.{number}.post1" for number in range(41)]
    one = judged("")
    printed = render("text", matrix(*({**one, "name": name} for name in names)))
    table = printed.split("\n\n")[1].rstrip().split("\n")
    assert len(table) == len(names) + 2
    assert max(map(len, table)) <= 125


def test_text_has_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = render("text", sample(), Terminal())
    assert "\x1b[" in coloured
    plain = render("text", sample())
    assert "\x1b" not in plain
    assert _ANSI.sub("", coloured).split() == plain.split()


@pytest.mark.parametrize("form", FORMS)
def test_foreign_text_stays_text(form: str) -> None:
    rendered = render(form, hostile())
    rendered.encode("utf-8")
    assert not [c for c in rendered if c != "\n" and visible(c, "\t") != c]


def test_hostile_text_is_no_markup_on_the_page() -> None:
    page = Page(render("html", hostile()))
    clean = Page(render("html", with_baseline()))
    assert page.tags == clean.tags
    assert page.attributes == clean.attributes
    assert "script" not in page.tags
    assert not [
        name for name in page.attributes if name.startswith("on") or name in ("src", "href")
    ]
    assert "{{ 7 * 7 }}" in render("html", hostile())


def test_hostile_text_is_only_code_in_markdown() -> None:
    parser = MarkdownIt("commonmark").enable("table")
    allowed = re.compile(
        r"<details><summary>[^<>]*(<code>[^<>]*</code>)?[^<>]*</summary>\n?|</details>\n?"
    )
    for token in parser.parse(render("markdown", hostile())):
        if token.type == "html_block":
            assert allowed.fullmatch(token.content), token.content
        for child in token.children or ():
            assert child.type in ("text", "code_inline", "strong_open", "strong_close"), child
            if child.type == "text":
                assert "hacked" not in child.content


def test_hostile_text_is_no_command_to_a_server() -> None:
    for line in render("github", hostile()).splitlines():
        assert "hacked" not in _command(line)[1]["title"]
        assert not [value for value in _command(line)[1].values() if "\n" in value]
    for line in render("text", hostile()).split("\n"):
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


def test_annotations_point_at_the_place() -> None:
    level, properties, message = _command(render("github", sample()).splitlines()[0])
    assert level == "error"
    assert properties == {
        "file": "sglang/srt/layers/sampler.py",
        "line": "7",
        "title": "failed check sampler.draws",
    }
    assert message.startswith("in v0.5.12\n")


def test_the_same_trouble_in_two_trees_is_told_once() -> None:
    for form in FORMS:
        if form not in ("html", "junit"):
            assert render(form, sample()).count("sought   get_dispatch_device_backend") == 1


def test_conflicts_in_other_lines_are_the_same() -> None:
    document = sample()
    conflicts = [o["evidence"] for o in document["results"][4]["outcomes"] if "evidence" in o]
    for evidence in conflicts:
        evidence["where"][0]["line"] += 100
    printed = render("text", document)
    assert "conflict in device_dispatch, batch_invariant on main, release/fork\n" in printed
    conflicts[0]["found"] = "another"
    assert "conflict in device_dispatch on release/fork\n" in render("text", document)


def test_all_of_a_tree_is_news_that_the_baseline_has_not() -> None:
    document = with_baseline()
    remark = "withheld: backend_lists on v0.5.9"
    assert remark not in render("text", document)
    document["changes"].append(
        {"name": "v0.5.9", "seam": "", "before": "missing", "after": "judged"}
    )
    assert remark in render("text", document)


def test_what_the_baseline_has_is_no_error() -> None:
    levels = [_command(line) for line in render("github", with_baseline()).splitlines()]
    errors = [properties["title"] for level, properties, _ in levels if level == "error"]
    assert errors == [
        "new since the baseline",
        "new since the baseline",
        "failed check sampler.draws",
        "conflict in device_dispatch",
    ]
    root = ElementTree.fromstring(render("junit", with_baseline()))  # noqa: S314  # our own output
    failed = {
        (suite.attrib["name"], case.attrib["name"])
        for suite in root
        for case in suite
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert failed == {("v0.5.12", "sampler.draws"), ("release/fork", "device_dispatch")}
    skipped = [each.attrib["type"] for each in root.iter("skipped")]
    assert skipped.count("conflict") == 3
    assert skipped.count("not examined") == 1
    (run,) = json.loads(render("sarif", with_baseline()))["runs"]
    assert [result["level"] for result in run["results"]] == [
        "error",
        "error",
        "note",
        "note",
        "note",
    ]


@pytest.mark.parametrize("form", ["markdown", "text", "html", "github"])
def test_news_name_the_upstream_commit(form: str) -> None:
    rendered = render(form, with_baseline())
    assert "0123456789ab" in rendered
    # A narrow report folds it.
    assert "Move the dispatch elsewhere" in " ".join(rendered.split())
    assert "0123456789ab" not in render(form, sample())


def test_every_change_fails_a_test_case_and_is_an_error() -> None:
    """So that a server shows why the run has failed."""
    document = with_baseline()
    for name, key in (("v0.5.13", ""), ("v0.5.9", "check sampler.gone"), ("v0.5.9", "sampler")):
        document["changes"].append({"name": name, "seam": key, "before": "missing", "after": "x"})
    root = ElementTree.fromstring(render("junit", document))  # noqa: S314  # our own output
    told = [failure.attrib["message"] for failure in root.iter("failure")]
    levels = [_command(line) for line in render("github", document).splitlines()]
    errors = [message for level, _, message in levels if level == "error"]
    for change in document["changes"]:
        said = f"{change['seam'] or 'tree'} on {change['name']}: {change['before']} before"
        assert len([message for message in told if said in message]) == 1
        assert len([message for message in errors if said in message]) == 1


def test_no_tree_at_all_can_be_reported() -> None:
    for form in FORMS:
        assert "0 trees" in render(form, matrix()) or form in ("junit", "sarif")


def test_escapes_show_what_was_there() -> None:
    assert visible("a\tb\x1b[1m\u202e\ud800") == "a\\tb\\x1b[1m\\u202e\\ud800"
    assert visible("a\tb\nc", "\n\t") == "a\tb\nc"
    assert visible(f"é {HOSTILE}", "\n").isprintable() is False
