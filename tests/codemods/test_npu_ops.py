"""Check when the operators' module is vendored, refreshed, and left to its owner."""

from __future__ import annotations

import ast

import pytest

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods.upstream.project import PROJECT
from tests.helpers import (
    NATIVE_OPS,
    OPS,
    OPS_ENABLE,
    batch_invariant_ops,
    check_already,
    check_applied,
    check_conflict,
    check_upstream,
    judge,
)

SEAM = "npu_ops"
PATH = f"{PROJECT.vendor_folder}/npu_ops.py"


def _vendored() -> bytes:
    return judge(SEAM)[2][PATH]


def _as_version(version: str) -> bytes:
    return _vendored().replace(
        f"npu-patch {__version__}:".encode(), f"npu-patch {version}:".encode()
    )


def test_adds_the_module_with_its_header() -> None:
    outcome = check_applied(SEAM, {}, {}, vendored=["npu_ops"])
    assert [str(site) for site in outcome.sites] == [f"sglang/{PATH} npu_ops"]
    data = _vendored()
    assert b"\r" not in data
    assert b"do not edit" in data.splitlines()[0]
    assert __version__.encode() in data.splitlines()[0]


def test_imports_nothing_that_the_tree_may_lack() -> None:
    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(_vendored()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    standard = {"__future__", "collections", "dataclasses", "functools", "importlib", "inspect",
                "logging", "math", "sys", "types", "typing"}  # fmt: skip
    assert names <= standard | {"torch", "torch_npu", "batch_invariant_ops"}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_vendored(), id="as written"),
        pytest.param(_vendored().replace(b"\n", b"\r\n"), id="with turned line endings"),
    ],
)
def test_an_unmodified_module_is_ours(data: bytes) -> None:
    check_already(SEAM, {PATH: data})


def test_an_older_version_of_ours_is_refreshed() -> None:
    outcome = check_applied(SEAM, {PATH: _as_version("0.0.1")}, {PATH: _vendored()})
    assert outcome.outdated


@pytest.mark.parametrize(
    ("data", "match"),
    [
        pytest.param(_vendored() + b"# mine\n", "somebody edited", id="edited behind the header"),
        pytest.param(
            _as_version("0.0.1") + b"# mine\n", "somebody edited", id="edited in an older version"
        ),
        pytest.param(_as_version("99.0"), "use that version", id="of a newer version"),
        pytest.param(b"x = 1\n", "did not write", id="of somebody else"),
        pytest.param(b"", "did not write", id="empty"),
        pytest.param(b"\n" + _vendored(), "did not write", id="with something above the header"),
    ],
)
def test_a_module_that_is_not_ours_to_write_is_a_conflict(data: bytes, match: str) -> None:
    outcome = check_conflict(SEAM, {PATH: data}, match=match)
    assert [site.line for site in outcome.sites] == [0]


NATIVE = {
    OPS: batch_invariant_ops(
        enable=OPS_ENABLE.replace(
            "    key =", "    from .npu_batch_invariant_ops import mm\n    key ="
        )
    )
}
MEAN = "def npu_mean_batch_invariant(x):\n    return x.float()\n"


@pytest.mark.parametrize(
    ("module", "gaps"),
    [
        pytest.param(MEAN, (), id="none that we know"),
        pytest.param(
            MEAN.replace("x.float()", "x.sum(dtype=torch.float32)"),
            ("mean_dtype",),
            id="a mean that stays float32",
        ),
        pytest.param(
            "def npu_fused_infer_attention_score_batch_invariant():\n    pass\n\n\n" + MEAN,
            ("out_overload_lost",),
            id="a function in the place of the operator",
        ),
        pytest.param(
            "def npu_add_rms_norm_batch_invariant(x, residual, weight, eps):\n    pass\n\n\n"
            + MEAN,
            ("add_rms_norm_signature",),
            id="a norm with other parameters than the operator's",
        ),
    ],
)
def test_upstreams_own_module_is_upstream(module: str, gaps: tuple[str, ...]) -> None:
    check_upstream(SEAM, {**NATIVE, NATIVE_OPS: module}, gaps=gaps)


def test_upstreams_own_module_missing_is_a_conflict() -> None:
    check_conflict(SEAM, NATIVE, match="this tool never writes it", at="def enable_batch")


def test_upstreams_module_that_nothing_imports_is_no_evidence() -> None:
    check_applied(SEAM, {NATIVE_OPS: MEAN}, {}, vendored=["npu_ops"])
