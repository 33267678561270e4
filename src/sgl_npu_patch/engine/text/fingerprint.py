"""Recognise a function under other names and in another layout."""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_DIGITS = 12


class Fingerprint(NamedTuple):
    """Identify a function by a digest of what it does, and by the names of its parameters."""

    body: str
    parameters: str


@dataclass(frozen=True, slots=True)
class Hint:
    """Describe a definition beyond its names.

    Attributes:
        beside: the names of definitions that stand in the same file or are used with it; none of
            them is taken for it.
        forms: the fingerprints that it has had.
    """

    beside: tuple[str, ...] = ()
    forms: frozenset[Fingerprint] = frozenset()


def fingerprint_of(text: str) -> Fingerprint | None:
    """Return the fingerprint of a function's text, None if it is no function that parses.

    In the digest every name counts only by where it first occurs; comments, layout, docstring,
    decorators and annotations do not count.
    """
    try:
        (function,) = ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    parts = "\n".join(_parts([function.args, *body], {}))
    names = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    return Fingerprint(hashlib.sha256(parts.encode()).hexdigest()[:_DIGITS], " ".join(names))


def _parts(value: object, seen: dict[str, int]) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _parts(item, seen)
        yield "]"
    elif isinstance(value, ast.Constant):
        yield repr(value.value)
    elif isinstance(value, ast.AST):
        yield type(value).__name__
        for field, inner in ast.iter_fields(value):
            # What is not there is left out: newer versions of Python have further fields.
            if inner not in (None, []) and field not in ("annotation", "returns", "type_comment"):
                yield from _parts(inner, seen)
    elif isinstance(value, str):
        yield str(seen.setdefault(value, len(seen)))
    else:
        yield repr(value)
