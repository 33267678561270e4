from __future__ import annotations

import ast

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_npu_patch.engine.cst import edit, layout, read


def statement(source: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    return cst.parse_statement(source)


def function(source: str) -> cst.FunctionDef:
    node = cst.parse_statement(source)
    assert isinstance(node, cst.FunctionDef)
    return node


def printed(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


@pytest.mark.parametrize(
    ("source", "dotted", "last"),
    [
        ("a", "a", "a"),
        ("a.b.c", "a.b.c", "c"),
        ("f().b", "", "b"),
        ("a[0].b", "", "b"),
        ("'a'", "", ""),
        ("f(a)", "", ""),
    ],
)
def test_names(source: str, dotted: str, last: str) -> None:
    node = cst.parse_expression(source)
    assert (read.dotted(node), read.last_name(node)) == (dotted, last)


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("['a', \"b\"]", ["a", "b"]),
        ("('a',)", ["a"]),
        ("{'a'}", ["a"]),
        ("['a' 'b']", ["ab"]),
        ("[]", []),
        ("['a', b]", None),
        ("[b'a']", None),
        ("[f'a']", None),
        ("['a', *b]", None),
        ("'a'", None),
        ("list('a')", None),
    ],
)
def test_strings_only_of_literals(source: str, values: list[str] | None) -> None:
    assert read.strings(cst.parse_expression(source)) == values


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a.b = 1", "a.b"),
        ("a: int = 1", "a"),
        ("a: int", None),
        ("a = b = 1", None),
        ("a += 1", None),
        ("a = 1; b = 2", None),
        ("f()", None),
    ],
)
def test_single_assignment(source: str, target: str | None) -> None:
    pair = read.assigned(statement(source))
    assert (pair and pair[0]) == target


@pytest.mark.parametrize(
    ("source", "operator"),
    [
        ("a == b", "=="),
        ("a != b", "!="),
        ("a in b", "in"),
        ("a not in b", "not in"),
        ("a < b", ""),
        ("a == b == c", None),
        ("not a", None),
    ],
)
def test_comparison(source: str, operator: str | None) -> None:
    sides = read.compared(cst.parse_expression(source))
    assert (sides and sides[1]) == operator


def test_walk_gives_every_node_once_and_no_white_space() -> None:
    node = function("def f(a, b=1):  # c\n    return a + b\n")
    found = read.walk(node)
    assert len({id(each) for each in found}) == len(found)
    assert [n.value for n in found if isinstance(n, cst.Name)] == ["f", "a", "b", "a", "b"]
    assert not [n for n in found if isinstance(n, cst.Comment | cst.SimpleWhitespace)]


def test_steps_say_how_they_are_reached() -> None:
    node = function(
        """\
def f():
    one()
    if a:
        two()
    elif b:
        three()
    else:
        four()
    try:
        five()
    except E:
        six()
    def inner():
        hidden()
"""
    )
    found = {
        read.code(step.node): [inside for _, inside in step.above]
        for step in read.steps(node)
        if isinstance(step.node, cst.SimpleStatementLine)
    }
    assert found == {
        "one()": [True],
        "two()": [True, True],
        "three()": [True, False, True],
        "four()": [True, False, False, True],
        "five()": [True, True],
        "six()": [True, False, True],
    }


def test_next_is_in_the_same_block() -> None:
    node = function("def f():\n    if a:\n        one()\n    two()\n")
    following = {read.code(s.node)[:3]: s.next and read.code(s.next) for s in read.steps(node)}
    assert following == {"if ": "two()", "one": None, "two": None}


def test_exchange_keeps_the_identity_of_all_others() -> None:
    node = function("def f():\n    one()\n    two()\n    three()\n")
    one, two, three = node.body.body
    new = edit.block("a()\nb()\n")
    after = edit.insert(node, two, before=new)
    assert after.body.body[0] is one
    assert after.body.body[4] is three
    assert printed(edit.insert(after, two, instead=[])) == (
        "def f():\n    one()\n    a()\n    b()\n    three()\n"
    )
    with pytest.raises(AssertionError, match="not below"):
        edit.swap(node, cst.Name("x"), cst.Name("y"))


def test_block_keeps_comments_and_empty_lines() -> None:
    node = function("def f():\n    one()\n")
    new = edit.block("# why\n\nif a:\n    # inner\n    b()\n\nc()\n", blank=True)
    after = edit.insert(node, node.body.body[0], after=new)
    assert printed(after) == (
        "def f():\n    one()\n\n    # why\n\n    if a:\n        # inner\n        b()\n\n    c()\n"
    )


def test_guarded_keeps_comments_above() -> None:
    node = function("def f():\n    # why\n    one()\n    two()\n")
    assert isinstance(node.body, cst.IndentedBlock)
    one, two = node.body.body
    guard = edit.guarded("a != 'b'", (one, two))
    after = edit.insert(edit.insert(node, two, instead=[]), one, instead=[guard])
    assert printed(after) == (
        "def f():\n    # why\n    if a != 'b':\n        one()\n        two()\n"
    )


def test_only_one() -> None:
    assert read.only([1], lambda count: ValueError(str(count))) == 1
    for found in ([], [1, 2]):
        with pytest.raises(ValueError, match=str(len(found))):
            read.only(found, lambda count: ValueError(str(count)))


@st.composite
def literals(draw: st.DrawFn) -> str:
    """Lists, tuples and sets of strings in any layout."""
    left, right = draw(st.sampled_from([("[", "]"), ("(", ")"), ("{", "}")]))
    quote = draw(st.sampled_from("'\""))
    names = draw(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=4))
    spaces = st.sampled_from(["", " ", "\n    ", "  # note\n    ", "\n\n    # note\n    "])
    items = [f"{draw(spaces)}{quote}{name}{quote}" for name in names]
    trailing = "," if left == "(" and len(names) == 1 else draw(st.sampled_from(["", ","]))
    return f"{left}{','.join(items)}{trailing}{draw(spaces)}{right}"


@given(literals())
@settings(max_examples=200, deadline=None)
def test_appended_string_is_the_only_difference(source: str) -> None:
    node = statement(f"x = {source}\n")
    value = read.assigned(node)
    assert value is not None
    after = printed(edit.swap(node, value[1], layout.append_to_list(value[1], "ascend", 20)))
    old, new = ast.literal_eval(source), ast.literal_eval(after.removeprefix("x = "))
    assert list(new) == [*old, "ascend"] if not isinstance(old, set) else new == {*old, "ascend"}
    assert after.count("# note") == source.count("# note")
    assert after.count("ascend") == 1
    if "\n" not in source:
        assert after.count("\n") == 1
