from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_npu_patch.engine.errors import AnchorError, Refused
from sgl_npu_patch.engine.text.source import read_source
from sgl_npu_patch.engine.text.uses import find_uses

PATH = PurePosixPath("m.py")

DEFINITIONS = (
    "x{n} = 1\n",
    "a{n}, b{n} = c{n} = (1, 2)\n",
    "import os.path as p{n}, sys\n",
    "def f{n}():\n    def g():\n        pass\n    return g\n",
    "@deco(\n    1\n)\n@other\nasync def f{n}(a, b=1):\n    'caf\u00e9 # x = 2'\n",
    "class C{n}:\n    y = 1\n\n    def m(self):\n        return 1\n    # after\n",
    "if x:\n    def f{n}(): pass\nelif y:\n    z{n} = 1\nelse:\n    import w{n}\n",
    "try:\n    import q{n}\nexcept E:\n    q{n} = None\nfinally:\n    r{n} = 1\n",
    "with a, b:\n    for i in j:\n        while k:\n            def f{n}(): ...\n",
    "t{n}: int = '''\n  def no():\n'''\n",
    "match v:\n    case 1:\n        u{n} = 2\n",
    "# comment = 1\n\n\n",
    "s{n} = 1; o{n} = 2\n",
    "e{n} = 1 + \\\n    2\n",
    "\x0c\n",
)
NEWLINES = ("\n", "\r\n", "\r")

sources = st.lists(st.sampled_from(DEFINITIONS), max_size=8).map(
    lambda parts: "".join(part.format(n=n) for n, part in enumerate(parts))
)
encodings = st.sampled_from(["utf-8", "latin-1", "cp1252", "utf-8-sig", "iso8859-15", "mac-roman"])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Sources with line endings mixed at random, in an encoding that they declare."""
    text, encoding = draw(sources), draw(encodings)
    cookie = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\n"
    text = (cookie if encoding != "utf-8" or draw(st.booleans()) else "") + text
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    kinds = st.sampled_from(draw(st.sampled_from([NEWLINES[:1], NEWLINES[1:2], NEWLINES])))
    text = "".join(draw(kinds) if part == "\n" else part for part in re.split("(\n)", text))
    return text.encode(encoding)


@given(files())
@settings(max_examples=150, deadline=None)
def test_bytes_survive(data: bytes) -> None:
    source = read_source(PATH, data)
    assert source.encode() == data
    assert source.splice(0, 0, "").encode() == data


@given(files())
@settings(max_examples=150, deadline=None)
def test_outline_agrees_with_ast(data: bytes) -> None:
    source = read_source(PATH, data)
    text = source.text.removeprefix("\ufeff")
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    expected = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min(n.lineno for n in [node, *node.decorator_list])
            expected.add((node.name, node.lineno, "".join(lines[first - 1 : node.end_lineno])))
    found = {
        (block.name, block.line, source.cut(block))
        for block in source.blocks
        if block.kind in ("function", "class")
    }
    assert found == expected


@given(files(), st.data())
@settings(max_examples=150, deadline=None)
def test_splice_changes_nothing_but_its_range(data: bytes, draw: st.DataObject) -> None:
    source = read_source(PATH, data)
    if not source.blocks:
        return
    block = draw.draw(st.sampled_from(source.blocks))
    new = draw.draw(st.sampled_from(["", "q = 1\n", "def f():\n    pass\n\n\n"]))
    after = source.splice(block.start, block.end, new)
    assert after.text == source.text[: block.start] + new + source.text[block.end :]
    outside = [b for b in source.blocks if b.end <= block.start or b.start >= block.end]
    kept = {(b.qualname, b.line): after.cut(b) for b in after.blocks}
    assert [kept[b.qualname, b.line] for b in outside] == [source.cut(b) for b in outside]


def outline(text: str) -> list[tuple[str, str, int, tuple[str, ...]]]:
    blocks = read_source(PATH, text.encode()).blocks
    return [(block.kind, block.qualname, block.line, block.guards) for block in blocks]


def test_outline_names_scopes_and_guards() -> None:
    text = """\
import a.b, c as d
if T:
    class C:
        x = 1
        if U:
            def m(self): ...
x = y = 1
"""
    assert outline(text) == [
        ("import", "a", 1, ()),
        ("import", "d", 1, ()),
        ("class", "C", 3, ("if",)),
        ("function", "C.m", 6, ("if",)),
        ("assignment", "x", 7, ()),
        ("assignment", "y", 7, ()),
    ]


def test_what_looks_like_a_definition_in_a_string_is_none() -> None:
    assert outline('"""\ndef f(): pass\nx = 1\n"""\n') == []


def test_first_line_leaves_the_byte_order_mark_alone() -> None:
    source = read_source(PATH, b"\xef\xbb\xbfx = 1\n")
    assert source.cut(source.blocks[0]) == "x = 1\n"
    assert source.splice(source.blocks[0].start, source.blocks[0].end, "y = 2\n").encode() == (
        b"\xef\xbb\xbfy = 2\n"
    )


def test_newer_syntax_is_outlined_all_the_same() -> None:
    text = "type X = int\n@d\ndef f[T](a: T):\n    return a\nclass C[T]:\n    def m(self): ...\n"
    source = read_source(PATH, text.encode())
    found = {block.qualname: source.cut(block) for block in source.blocks}
    assert found["f"] == "@d\ndef f[T](a: T):\n    return a\n"
    assert found["C.m"] == "    def m(self): ...\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"def (\n", "m.py:1: does not parse", id="syntax error"),
        pytest.param(
            b"a = 0\r\n<<<<<<< HEAD\r\nb = 1\r\n=======\r\nb = 2\r\n>>>>>>> theirs\r\n",
            "m.py:2: holds an unresolved merge conflict",
            id="unresolved merge",
        ),
        pytest.param(
            b'a = """\n<<<<<<< HEAD\n=======\n"""\ndef (\n', "m.py:5: does not parse", id="no merge"
        ),
        pytest.param(b"x = 1\0\n", "null bytes", id="null byte"),
        pytest.param(b"x = '\xff'\n", "cannot be decoded", id="not UTF-8"),
        pytest.param(b"\xff\xfex\0", "cannot be decoded", id="UTF-16"),
        pytest.param(b"# coding: no-such\n", "cannot be decoded", id="unknown encoding"),
        pytest.param(b"# coding: rot13\nk = 1\n", "cannot be decoded", id="not a text encoding"),
        pytest.param(b"# coding: utf-7\nk = '+AGE-'\n", "several spellings", id="ambiguous bytes"),
        pytest.param(b"x = " + b"[" * 2000 + b"]" * 2000, "nested", id="2,000 brackets"),
        pytest.param(b"x = " + b"-" * 100000 + b"1", "m.py", id="100,000 signs"),
        pytest.param(
            b"if a: pass\n" + b"elif a: pass\n" * 3000, "does not parse", id="3,000 elifs"
        ),
    ],
)
def test_unreadable_file_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read_source(PATH, data)


def test_huge_line_is_no_obstacle() -> None:
    text = f"x = '{'a' * 3_000_000}'\ndef f(): pass\n"
    assert [name for _, name, _, _ in outline(text)] == ["x", "f"]


def test_character_without_a_place_in_the_encoding() -> None:
    source = read_source(PATH, b"# coding: ascii\nx = 1\n")
    with pytest.raises(Refused, match="cannot be written as"):
        source.splice(16, 16, "caf\u00e9\n").encode()


@pytest.mark.parametrize(
    ("text", "newline"),
    [("", "\n"), ("x", "\n"), ("x\r\ny\n", "\r\n"), ("x\ry\n", "\r"), ("x\ny\r\n", "\n")],
)
def test_newline_is_the_first_one(text: str, newline: str) -> None:
    assert read_source(PATH, text.encode()).newline == newline


def test_uses_are_told_apart() -> None:
    text = """\
def draw(): ...
draw()
self.draw(draw)
getattr(x, "draw")
from m import draw as sample
from m import other as draw
drawn()
from m import draw
from m import draw as draw
"""
    uses = [(use.line, use.kind) for use in find_uses("draw", text)]
    assert sorted(uses) == [
        (1, "definition"),
        (2, "call"),
        (3, "call"),
        (3, "other"),
        (4, "other"),
        (5, "other"),
        (6, "other"),
    ]


def test_uses_in_newer_syntax_are_a_conflict() -> None:
    with pytest.raises(AnchorError, match="syntax"):
        list(find_uses("draw", "def f[[T]](): draw()\n"))


@pytest.mark.parametrize("data", [b"def f():\n    draw()\n", b"\xef\xbb\xbfdef f(): draw()\n"])
def test_around_finds_the_function_of_a_line(data: bytes) -> None:
    source = read_source(PATH, data)
    (use,) = find_uses("draw", source.text)
    assert [block.name for block in source.around(use.line)] == ["f"]
