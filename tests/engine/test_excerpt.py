"""Excerpts of code in messages."""

from __future__ import annotations

import pytest

from sgl_npu_patch.engine.text.excerpt import excerpt, parting

LONG = ", ".join(f"argument_{number}" for number in range(60))


def test_a_short_text_is_shown_whole_on_one_line() -> None:
    assert excerpt("f(\n    a,\n    b,\n)\n") == "f( a, b, )"


@pytest.mark.parametrize("part", ["argument_0,", "argument_30", "argument_59"])
def test_the_part_that_matters_is_in_it(part: str) -> None:
    shown = excerpt(f"f({LONG})", part)
    assert part in shown
    assert len(shown) < 130
    assert shown.startswith("...") == (part != "argument_0,")
    assert shown.endswith("...") == (part != "argument_59")


def test_the_beginning_is_shown_where_the_part_is_not_there() -> None:
    assert excerpt(LONG, "other").startswith("argument_0, argument_1")


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_the_first_difference_is_seen(place: int) -> None:
    other = LONG.replace(f"argument_{place},", f"changed_{place},")
    one, two = parting(LONG, other)
    assert f"argument_{place}," in one
    assert f"changed_{place}," in two


@pytest.mark.parametrize(
    ("one", "other"), [("a  b", "a b"), ("a\n", "a"), (LONG + "\t\n", LONG + "\n"), (LONG, "")]
)
def test_different_texts_are_never_shown_as_the_same(one: str, other: str) -> None:
    shown = parting(one, other)
    assert shown[0] != shown[1]
