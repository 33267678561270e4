"""Read the schema of an operator of torch from its text, without torch.

``npu_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor``: a type, a name and
perhaps a default for every argument, keyword-only behind a star.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HEAD = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.(?P<overload>[A-Za-z_]\w*))?\(")
_TYPES = (
    "Tensor", "int", "SymInt", "float", "bool", "str", "Scalar", "complex", "ScalarType", "Layout",
    "Device", "MemoryFormat", "Generator", "Dimname", "Storage", "Stream", "QScheme", "Any",
)  # fmt: skip
_TYPE = (
    rf"(?:{'|'.join(_TYPES)})(?:\([a-z](?:\|[a-z])*!?\))?(?:\??\[\d*\](?:\([a-z]!?\))?)?(?: ?\?)?"
)
_TEXT = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_VALUE = rf"{_TEXT}|\[[^\[\]]*\]|[^\s,()\"'\[\]]+"
_ARGUMENT = re.compile(rf"(?P<type>{_TYPE}) (?P<name>[A-Za-z_]\w*)(?: ?= ?(?P<default>{_VALUE}))?")
_RETURN = rf"{_TYPE}(?: [A-Za-z_]\w*)?"
_RETURNS = re.compile(rf"\) ?-> ?(?:{_RETURN}|\((?:{_RETURN}(?:, ?{_RETURN})*)?\))")
_NAMES = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Argument:
    """Describe one argument; `default` has no meaning where the argument is required."""

    name: str
    type: str
    required: bool
    default: Any
    keyword_only: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Describe one overload of an operator; the default one is named ``default``."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    text: str

    @property
    def positional(self) -> tuple[Argument, ...]:
        """List the arguments that may be given by place."""
        return tuple(each for each in self.arguments if not each.keyword_only)


def parse(text: str) -> Schema | None:
    """Give the schema that `text` is as a whole, or None if it is none."""
    head = _HEAD.match(text)
    if head is None:
        return None
    arguments: list[Argument] = []
    place, keyword_only = head.end(), False
    while not (end := _RETURNS.match(text, place)):
        if text.startswith("*", place) and not keyword_only:
            place, keyword_only = place + 1, True
        elif found := _ARGUMENT.match(text, place):
            place = found.end()
            default = found["default"]
            arguments.append(
                Argument(
                    found["name"],
                    found["type"],
                    default is None,
                    None if default is None else _value(default),
                    keyword_only,
                )
            )
        else:
            return None
        separator = re.compile(r", *").match(text, place)
        if separator:
            place = separator.end()
        elif not text.startswith(")", place):
            return None
    if end.end() != len(text):
        return None
    return Schema(head["name"], head["overload"] or "default", tuple(arguments), text)


def overloads_in(schemas: Mapping[str, str], operator: str) -> list[Schema]:
    """Parse the overloads of one operator, the default one first."""
    found = [parse(text) for name, text in schemas.items() if name.partition(".")[0] == operator]
    return sorted((each for each in found if each), key=lambda each: each.overload != "default")


def _value(text: str) -> Any:
    """Give a default; a name such as ``contiguous_format`` stands for itself."""
    if text in _NAMES:
        return _NAMES[text]
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text
