"""What a pattern matches, and what it does not."""

from __future__ import annotations

import libcst as cst
import pytest

from sgl_npu_patch.engine.cst import pattern, read


def _found(form: str, source: str) -> dict[str, str] | None:
    body = cst.parse_module(source).body
    found = pattern.match_block(form, body)
    return None if found is None else {name: read.code(node) for name, node in found.items()}


@pytest.mark.parametrize(
    ("form", "source", "expected"),
    [
        ("$x.mode = 'on'", 'args.mode = "on"', {"x": "args"}),
        ("$x = make(...)", "a = make()", {"x": "a"}),
        ("$x = make(...)", "a = make(1, two=2)", {"x": "a"}),
        ("$x = make(...)", 'a: "object" = make(1)', {"x": "a"}),
        ("$x + $x", "f(1) + f( 1 )", {"x": "f(1)"}),
        ("$_ + $_", "a + b", {}),
        ("if $test:\n    ...\n", "if a > b:\n    c()\n    d()\n", {"test": "a > b"}),
        ("$a = 1\n$b = $a", "x = 1\ny = x", {"a": "x", "b": "y"}),
    ],
)
def test_matches(form: str, source: str, expected: dict[str, str]) -> None:
    assert _found(form, source) == expected


@pytest.mark.parametrize(
    ("form", "source"),
    [
        ("$x.mode = 'on'", 'mode = "on"'),
        ("$x.mode = 'on'", 'args.mode = other = "on"'),
        ("$x = make(...)", "a: object"),
        ("$x = make(...)", "a += make()"),
        ("$x = make(1, ...)", "a = make()"),
        ("make(1)", "make(1, 2)"),
        ("$x + $x", "a + b"),
        ("if $test:\n    ...\n", "if a:\n    b()\nelse:\n    c()\n"),
        ("$a = 1\n$b = $a", "x = 1\ny = z"),
        ("$a = 1", "x = 1\ny = 2"),
    ],
)
def test_does_not_match(form: str, source: str) -> None:
    assert _found(form, source) is None


def test_finds_statements_at_any_depth() -> None:
    function = cst.parse_module("def f():\n    if a:\n        x = g(1)\n    y = g(2)\n").body[0]
    found = pattern.find(["$name = g($value)"], function)
    assert [read.code(bound["name"]) for _, bound in found] == ["x", "y"]
