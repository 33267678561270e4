"""Test what readers of bindings see of a file."""

from __future__ import annotations

import ast

from sgl_npu_patch.engine.text.plain import parse


def test_annotations_of_assignments_are_dropped_in_every_block() -> None:
    text = (
        "a: int = 1\n"
        "try:\n    b: int = 2\nexcept E:\n    c: int = 3\nelse:\n    d: int = 4\n"
        "def f():\n    for i in x:\n        e: int = 5\n"
    )
    assert ast.unparse(parse(text)) == ast.unparse(ast.parse(text.replace(": int =", " =")))


def test_fields_of_classes_and_bare_annotations_stay() -> None:
    text = "class C:\n    a: int = 1\nb: int"
    assert ast.unparse(parse(text)) == ast.unparse(ast.parse(text))
