from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import libcst as cst
import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.cst import edit
from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.view import Spot, View
from tests.engine.package import build

Edit = Callable[[View], Spot]
OTHER = PurePosixPath("sglang/srt/other.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build(tmp_path, "sglang")
    return tmp_path


def view_of(root: Path, source: str | bytes = b"") -> View:
    data = source.encode() if isinstance(source, str) else source
    (root / OTHER).write_bytes(data)
    return View(Overlay(open_directory(root, PROJECT)), [])


def add_call(view: View, name: str, call: str, *, first: bool = False) -> None:
    """Insert a call at the start or the end of a function."""
    spot = view.find_function(name)
    body = spot.function.body.body
    new = edit.block(f"{call}\n")
    where = {"before": new} if first else {"after": new}
    view.replace(spot, edit.insert(spot.node, body[0 if first else -1], **where))


def text(view: View) -> str:
    return (view.overlay.read(OTHER) or b"").decode()


def test_method_is_found_by_its_plain_name(root: Path) -> None:
    view = view_of(root, "class A:\n    @d\n    def wanted(self):\n        pass\n")
    spot = view.find_function("wanted")
    assert spot.site == Site(OTHER, 3, "A.wanted")
    assert spot.function.name.value == "wanted"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("wanted = 1\n", "none"),
        ("# def wanted(): pass\n", "none"),
        ("'''\ndef wanted(): pass\n'''\n", "none"),
        ("def wanted2(): pass\n", "none"),
        ("def wanted(): pass\ndef wanted(): pass\n", "2 definitions"),
        ("class A:\n    def wanted(self): ...\nclass B:\n    def wanted(self): ...\n", "2 defin"),
    ],
)
def test_no_or_two_definitions_are_a_conflict(root: Path, source: str, found: str) -> None:
    with pytest.raises(AnchorError, match=found):
        view_of(root, source).find_function("wanted")


def test_nearest_name_is_shown_and_not_taken(root: Path) -> None:
    view = view_of(root, "def wanted_one(): pass\n# wanted_ome\n")
    view.find_function("wanted_one")
    with pytest.raises(AnchorError) as conflict:
        view.find_function("wanted_ome")
    assert conflict.value.nearest.startswith(f"{OTHER}:1 wanted_one")


def test_conflict_names_both_places(root: Path) -> None:
    view = view_of(root, "def is_npu(): pass\n")
    with pytest.raises(AnchorError) as conflict:
        view.find_function("is_npu")
    assert [site.line for site in conflict.value.where] == [1, 1]


def test_two_statements_on_the_line_are_a_conflict(root: Path) -> None:
    with pytest.raises(AnchorError, match=r"line of its own|lines"):
        view_of(root, "a = 1; wanted = ['x']\n").find_assignment("wanted")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n"], ids=["no final newline", "final newline"])
def test_edit_changes_only_its_lines(root: Path, newline: str, end: str) -> None:
    before = "x = 1\t# \u00e9\n\nclass A:\n\tdef one(self):\n\t\ta( 1 )\n\n\n\tdef two(self): ..."
    before = (before + end).replace("\n", newline)
    view = view_of(root, before)
    add_call(view, "one", "added()")
    assert text(view) == before.replace("a( 1 )", f"a( 1 ){newline}\t\tadded()")


def test_last_line_without_newline(root: Path) -> None:
    view = view_of(root, "def one():\n    a()")
    add_call(view, "one", "added()")
    assert text(view) == "def one():\n    a()\n    added()"


def test_byte_order_mark_stays_in_front(root: Path) -> None:
    view = view_of(root, b"\xef\xbb\xbfdef one():\n    a()\n")
    add_call(view, "one", "added()")
    assert view.overlay.read(OTHER) == b"\xef\xbb\xbfdef one():\n    a()\n    added()\n"


@pytest.mark.parametrize(
    "source",
    ["def one():\r    a()\r\rx = 1\r", "class A:\n\x0c    def one(self):\n        a()\n"],
    ids=["lone carriage returns", "form feed before a method"],
)
def test_what_libcst_does_not_print_back_is_a_conflict(root: Path, source: str) -> None:
    view = view_of(root, source)
    with pytest.raises(AnchorError, match="byte for byte"):
        add_call(view, "one", "added()")
    assert text(view) == source


@pytest.mark.parametrize("feed", ["\x0c\n", "    \x0c\n"])
def test_form_feed_elsewhere_is_kept(root: Path, feed: str) -> None:
    source = f"x = 1\n{feed}def one():\n    a()\n{feed}\ny = 2\n"
    view = view_of(root, source)
    add_call(view, "one", "added()")
    assert text(view) == source.replace("a()\n", "a()\n    added()\n")


def test_lines_count_in_the_tree_as_read(root: Path) -> None:
    source = "def one():\n    a()\n    b()\n\n\ndef two():\n    c()\n    d()\n"
    view = view_of(root, source)
    add_call(view, "one", "new()", first=True)
    add_call(view, "two", "new()", first=True)
    add_call(view, "one", "new()")
    assert [(site.line, site.symbol) for site in view.sites] == [(2, "one"), (7, "two"), (3, "one")]
    assert view.find_function("two").site.line == 6


def test_line_behind_a_decorator(root: Path) -> None:
    view = view_of(root, "@d(\n    1\n)\ndef one():\n    a()\n    b()\n")
    assert view.find_function("one").site.line == 4
    add_call(view, "one", "new()", first=True)
    assert [site.line for site in view.sites] == [5]


def test_edits_of_two_functions_do_not_disturb_each_other(root: Path) -> None:
    source = "def one():\n    a()\n\n\ndef two():\n    b()\n"
    view = view_of(root, source)
    for name in ("two", "one", "two", "one"):
        add_call(view, name, f"{name}_()")
    assert text(view) == (
        "def one():\n    a()\n    one_()\n    one_()\n\n\n"
        "def two():\n    b()\n    two_()\n    two_()\n"
    )


def test_edit_that_does_not_compile_is_a_bug(root: Path) -> None:
    view = view_of(root, "def one():\n    a()\n")
    with pytest.raises(AssertionError, match="does not compile"):
        add_call(view, "one", "return (yield from x) if await_ else break_ ; continue")


def _calls(name: str) -> Callable[[ast.stmt, Sequence[tuple[ast.stmt, bool]]], bool]:
    return lambda node, _: isinstance(node, ast.If) and ast.unparse(node.test) == name


@pytest.mark.parametrize(
    ("conditions", "lines"), [(["x"], [4]), ([], [2]), (["x", "x"], [4, 7])], ids=len
)
def test_statement_inside_a_function(root: Path, conditions: list[str], lines: list[int]) -> None:
    tests = "".join(f"\n        if {name}:\n            b()\n" for name in conditions)
    view = view_of(root, f"class A:\n    def one(self):\n{tests}        return 1\n")
    if len(conditions) == 1:
        spot = view.find_statement("one", _calls("x"), holding="", sought="if x")
        assert (spot.site.line, type(spot.node)) == (4, cst.If)
        return
    with pytest.raises(AnchorError) as conflict:
        view.find_statement("one", _calls("x"), holding="", sought="if x")
    assert [site.line for site in conflict.value.where] == lines


def test_statement_is_edited_in_place(root: Path) -> None:
    source = (
        "class A:\n    def one(self):\n        a()\n        if x:\n            b( )\n        c()\n"
    )
    view = view_of(root, source)
    spot = view.find_statement("one", _calls("x"), holding="", sought="if x")
    node = spot.node
    assert isinstance(node, cst.If)
    view.replace(spot, edit.insert(node, node.body.body[0], after=edit.block("new()\n")))
    assert text(view) == source.replace("b( )\n", "b( )\n            new()\n")
    assert [site.line for site in view.sites] in ([5], [6])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    wanted()\n", None),
        ("def f():\n    wanted()\n    wanted()\n", "2 calls"),
        ("wanted()\n", "1 call outside of any function"),
        ("def f():\n    wanted()\nx = wanted\n", "1 other"),
        ("def f():\n    getattr(a, 'wanted')()\n", "found 1 other use"),
        ("\n", "found none"),
    ],
)
def test_caller(root: Path, source: str, found: str | None) -> None:
    view = view_of(root, f"{source}\n\ndef wanted():\n    wanted()\n")
    if found is None:
        assert view.find_caller("wanted").site == Site(OTHER, 1, "f")
    else:
        with pytest.raises(AnchorError, match=found):
            view.find_caller("wanted")


def test_the_caller_of_what_is_nowhere(root: Path) -> None:
    with pytest.raises(AnchorError, match="function wanted: expected exactly one definition"):
        view_of(root, "def f():\n    wanted()\n").find_caller("wanted")


def test_function_of_a_spot_that_is_none(root: Path) -> None:
    with pytest.raises(AnchorError, match="a function"):
        _ = view_of(root, "wanted = ['x']\n").find_assignment("wanted").function


def test_a_definition_without_the_text_that_it_must_hold_is_named(root: Path) -> None:
    view = view_of(root, "def sample(seed):\n    pass\n")
    with pytest.raises(AnchorError) as caught:
        view.find_function("sample", holding="seeds=")
    assert caught.value.found == "none with it"
    assert [site.line for site in caught.value.where if site.path == OTHER] == [1]
