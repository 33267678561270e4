"""Schemas are read as torch reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sgl_npu_patch.verify import torch_npu_wheel
from sgl_npu_patch.verify.schema import overloads_in, parse
from tests.verify.test_contracts import NEWEST, OLDEST

parse_schema: Any = torch._C.parse_schema


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_schema_of_a_wheel(version: str) -> None:
    texts = torch_npu_wheel.read(version).schemas
    assert len(texts) > 300
    for text in texts.values():
        if "Dimname" in text:
            continue  # torch 2.13 has no such type any more
        own, real = parse(text), parse_schema(text)
        assert own is not None, text
        assert (own.name, own.overload) == (real.name, real.overload_name or "default")
        assert [(a.name, a.keyword_only, a.required) for a in own.arguments] == [
            (a.name, a.kwarg_only, not a.has_default_value()) for a in real.arguments
        ]


def test_defaults() -> None:
    text = (
        'f(Tensor a, int b=-1, float c=1e-06, str d="x, y", bool e=False, int[] f=[1, 2],'
        " *, Tensor? g=None, ScalarType? h=long, Tensor(a!) i) -> (Tensor(a!) out, Tensor)"
    )
    schema = parse(text)
    assert schema is not None
    assert parse_schema(text) is not None
    values = [each.default for each in schema.arguments]
    assert values == [None, -1, 1e-06, "x, y", False, [1, 2], None, "long", None]
    assert [each.name for each in schema.arguments if each.required] == ["a", "i"]
    assert [each.name for each in schema.positional] == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "npu_norm",
        "npu_norm(Tensor x)",
        "npu_norm(Tensor x) -> Tensor and more",
        "npu_norm(Tensor x -> Tensor",
        "npu_norm(Tensor x,, Tensor y) -> Tensor",
        "npu_norm(at::Tensor x) -> at::Tensor",
        "({torch.Tensor}) -> torch.Tensor",
        "expected(int) -> got",
    ],
)
def test_what_only_looks_like_one(text: str) -> None:
    assert parse(text) is None
    with pytest.raises(RuntimeError):
        parse_schema(text)


def test_overloads_begin_with_the_default_one() -> None:
    texts = {"f.out": "f.out(Tensor x) -> Tensor", "f": "f(Tensor x) -> Tensor"}
    assert [each.overload for each in overloads_in(texts, "f")] == ["default", "out"]
