"""Check how batch-invariant mode is handed over on an NPU, and when nobody can tell how."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from tests.helpers import (
    COMMON,
    NATIVE_OPS,
    OPS,
    OPS_DISABLE,
    OPS_ENABLE,
    OPS_HEAD,
    OPS_SCOPED,
    batch_invariant_ops,
    check_already,
    check_applied,
    check_conflict,
    check_edited,
    check_upstream,
    common,
    judge,
)

SEAM = "batch_invariant"
LOCAL = "    from sglang.srt.utils.common import is_npu\n\n"
VENDORED = "from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops\n"
OLD_ENABLE = """\
def enable_batch_invariant_mode():
    global _MODE, _LIB
    if _MODE:
        return
    _MODE = True
    _LIB = torch.library.Library("aten", "IMPL")
    _LIB.impl("aten::mm", triton_mm, "CUDA")
"""


def _enabled(arguments: str, imports: str = LOCAL) -> str:
    return (
        f"\n{imports}    if is_npu():\n        {VENDORED}\n"
        f"        _LIB = npu_ops.enable({arguments})\n        _MODE = True\n        return\n"
    )


def _disabled(imports: str = LOCAL) -> str:
    return f"{imports}    if _MODE and is_npu():\n        {VENDORED}\n        npu_ops.disable()\n"


def _scoped(arguments: str, imports: str = LOCAL) -> str:
    return f"""\
{imports}    if is_npu():
        {VENDORED}
        was_enabled, was_bmm = _MODE, npu_ops.bmm_enabled()
        if enabled:
            enable_batch_invariant_mode()
        else:
            disable_batch_invariant_mode()
        try:
            yield
        finally:
            if was_enabled:
                enable_batch_invariant_mode({arguments})
            else:
                disable_batch_invariant_mode()
        return
"""


def with_edits(source: str, edits: dict[str, str]) -> str:
    for anchor, text in edits.items():
        assert source.count(anchor) == 1, anchor
        source = source.replace(anchor, anchor + text)
    return source


def hand_over_edits(imports: str = LOCAL) -> dict[str, str]:
    return {
        "    key = get_dispatch_device_backend()\n": _enabled("key, enable_bmm", imports),
        "disable_batch_invariant_mode():\n    global _MODE, _LIB, _bmm\n": _disabled(imports),
        "enabled: bool = True):\n    global _MODE, _LIB\n": _scoped("enable_bmm=was_bmm", imports),
    }


def test_hands_over_in_all_three_functions() -> None:
    source = batch_invariant_ops()
    check_applied(SEAM, {}, {OPS: with_edits(source, hand_over_edits())})


def test_uses_the_is_npu_that_the_module_has() -> None:
    head = OPS_HEAD.replace("import get_dis", "import is_npu, get_dis")
    source = batch_invariant_ops(head=head)
    check_applied(SEAM, {OPS: source}, {OPS: with_edits(source, hand_over_edits(""))})


def test_a_key_that_is_written_out_becomes_npu() -> None:
    source = batch_invariant_ops(enable=OLD_ENABLE)
    flag = "    if _MODE:\n        return\n"
    edits = {
        flag: _enabled('"NPU"'),
        "disable_batch_invariant_mode():\n    global _MODE, _LIB, _bmm\n": _disabled(),
        "enabled: bool = True):\n    global _MODE, _LIB\n": _scoped(""),
    }
    check_applied(SEAM, {OPS: source}, {OPS: with_edits(source, edits)})


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda s: s.replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(lambda s: b"\xef\xbb\xbf" + s.encode(), id="BOM"),
        pytest.param(
            lambda s: b"# coding: latin-1\nname = '\xe9'\n" + s.encode("latin-1"),
            id="latin-1 cookie",
        ),
        pytest.param(lambda s: s.rstrip("\n").encode(), id="no final newline"),
    ],
)
def test_keeps_every_other_byte(shape: Callable[[str], bytes]) -> None:
    source = batch_invariant_ops()
    check_applied(SEAM, {OPS: shape(source)}, {OPS: shape(with_edits(source, hand_over_edits()))})


def test_indents_by_tabs_in_a_file_of_tabs() -> None:
    source = batch_invariant_ops().replace("    ", "\t")
    after = with_edits(batch_invariant_ops(), hand_over_edits()).replace("    ", "\t")
    check_applied(SEAM, {OPS: source}, {OPS: after})


def test_finds_the_functions_in_another_module() -> None:
    source = batch_invariant_ops()
    path = "srt/invariance.py"
    check_applied(SEAM, {OPS: None, path: source}, {path: with_edits(source, hand_over_edits())})


def test_a_half_patched_module_gets_the_other_half() -> None:
    source = batch_invariant_ops()
    edits = hand_over_edits()
    first = dict([edits.popitem()])
    check_applied(
        SEAM, {OPS: with_edits(source, first)}, {OPS: with_edits(with_edits(source, first), edits)}
    )


def test_a_patched_module_is_ours() -> None:
    check_already(SEAM, {OPS: with_edits(batch_invariant_ops(), hand_over_edits())})


NATIVE_ENABLE = OPS_ENABLE.replace(
    "    key =",
    "    if is_npu():\n"
    "        from sglang.srt.hardware_backend.npu.batch_invariant_ops.npu_batch_invariant_ops"
    " import mm\n"
    '        torch.library.Library("aten", "IMPL").impl("aten::mm", npu_mm, "NPU")\n'
    "        torch.ops.npu.npu_fused_infer_attention_score = mm\n        return\n    key =",
)


NATIVE_GAPS = (
    "alias_not_rebound",
    "workspace_not_rebound",
    "rebinding_not_undone",
    "addmm_not_registered",
    "bmm_not_registered",
    "mean_of_all_not_replaced",
    "scoped_mode_not_restored",
)


def test_upstreams_own_branch_is_upstream_with_its_gaps() -> None:
    check_upstream(
        SEAM,
        {OPS: batch_invariant_ops(enable=NATIVE_ENABLE), NATIVE_OPS: ""},
        gaps=NATIVE_GAPS,
    )


def test_a_flag_that_is_set_before_anything_can_fail_is_a_gap() -> None:
    flagged = NATIVE_ENABLE.replace("    if is_npu():\n", "    _MODE = True\n    if is_npu():\n", 1)
    check_upstream(
        SEAM,
        {OPS: batch_invariant_ops(enable=flagged), NATIVE_OPS: ""},
        gaps=(*NATIVE_GAPS, "extension_not_checked"),
    )


def test_upstreams_branch_without_its_module_is_a_conflict() -> None:
    check_conflict(
        SEAM,
        {OPS: batch_invariant_ops(enable=NATIVE_ENABLE)},
        match="restore the file from upstream",
        at="def enable_batch_invariant_mode",
    )


@pytest.mark.parametrize(
    ("enable", "match"),
    [
        pytest.param(
            OPS_ENABLE.replace("    if _MODE:\n        return\n", ""), "the flag", id="no flag"
        ),
        pytest.param(
            OPS_ENABLE.replace("if _MODE:\n        return", "if _MODE: return"),
            "the flag",
            id="the flag is checked on one line",
        ),
        pytest.param(
            OPS_ENABLE.replace("if _MODE:", "if _MODE and enable_bmm:"),
            "the flag",
            id="the flag is not checked alone",
        ),
        pytest.param(
            OPS_ENABLE.replace("if _MODE:", "if _LIB:\n        return\n    if _MODE:"),
            "found 2",
            id="two flags are checked",
        ),
        pytest.param(
            OPS_ENABLE.replace("global _MODE, _LIB, _bmm", "global _LIB, _bmm").replace(
                "    _MODE = True\n", "    switch_on()\n"
            ),
            "names the library and the flag",
            id="the flag is set by another function",
        ),
        pytest.param(
            OPS_ENABLE.replace("_LIB = torch", "lib = torch"),
            "names the library and the flag",
            id="the library is a local",
        ),
        pytest.param(
            OPS_ENABLE.replace('torch.library.Library("aten", "IMPL")', "make_library()"),
            "torch.library.Library",
            id="the library is made elsewhere",
        ),
        pytest.param(
            OPS_ENABLE.replace("    key = get_dispatch_device_backend()\n", "").replace(
                "    if enable_bmm", "    key = get_dispatch_device_backend()\n    if enable_bmm"
            ),
            "another order",
            id="the key is asked for behind the library",
        ),
        pytest.param(
            OPS_ENABLE.replace("enable_bmm: bool = True", "enable_bmm=True, enable_sum=True")
            + "    if enable_sum:\n        torch.sum = triton_sum\n",
            "none, or enable_bmm",
            id="a parameter that npu_ops does not know",
        ),
        pytest.param(
            OPS_ENABLE.replace("enable_bmm: bool", "*, use_bmm: bool").replace(
                "if enable_bmm", "if use_bmm"
            ),
            "none, or enable_bmm",
            id="a parameter of another name",
        ),
        pytest.param(OPS_ENABLE + "\n\n" + OPS_ENABLE, "2 definitions", id="defined twice"),
        pytest.param(
            "if torch.cuda.is_available():\n"
            + "".join(f"    {line}\n" for line in OPS_ENABLE.splitlines()),
            "under no condition",
            id="defined under a condition",
        ),
        pytest.param(
            OPS_ENABLE + "\n\nenable_batch_invariant_mode = once(enable_batch_invariant_mode)\n",
            "that an assignment replaces",
            id="wrapped afterwards",
        ),
    ],
)
def test_an_enable_that_is_not_clear_is_a_conflict(enable: str, match: str) -> None:
    check_conflict(SEAM, {OPS: batch_invariant_ops(enable=enable)}, match=match)


@pytest.mark.parametrize("parameters", ["enable_bmm=True, mode=None", "mode=1, enable_bmm=True"])
def test_a_parameter_that_nothing_reads_does_not_matter(parameters: str) -> None:
    enable = OPS_ENABLE.replace("enable_bmm: bool = True", parameters)
    check_edited(SEAM, {OPS: batch_invariant_ops(enable=enable)}, OPS, ", enable_bmm)")


@pytest.mark.parametrize(
    "body", ["    use(**locals())\n", "    note(lambda: mode)\n", '    note(f"{mode}")\n']
)
def test_a_parameter_that_something_may_read_is_a_conflict(body: str) -> None:
    enable = OPS_ENABLE.replace("enable_bmm: bool = True", "enable_bmm=True, mode=None") + body
    check_conflict(SEAM, {OPS: batch_invariant_ops(enable=enable)}, match="none, or enable_bmm")


def test_a_keyword_only_enable_bmm_is_handed_on() -> None:
    enable = OPS_ENABLE.replace("(enable_bmm", "(*, enable_bmm")
    check_edited(
        SEAM,
        {OPS: batch_invariant_ops(enable=enable)},
        OPS,
        "npu_ops.enable(key, enable_bmm)",
        "enable_batch_invariant_mode(enable_bmm=was_bmm)",
    )


@pytest.mark.parametrize(
    ("scoped", "match"),
    [
        pytest.param(
            OPS_SCOPED.replace("yield", "yield _LIB"),
            "one yield of nothing",
            id="it yields a value",
        ),
        pytest.param(
            OPS_SCOPED.replace(
                "    yield\n", "    if enabled:\n        yield\n    else:\n        yield\n"
            ),
            "one yield of nothing",
            id="it yields in two places",
        ),
        pytest.param(
            OPS_SCOPED.replace("bool = True)", "bool = True, *, enable_bmm: bool = True)"),
            "one parameter",
            id="it has another parameter",
        ),
        pytest.param(
            OPS_SCOPED.replace("@contextlib.contextmanager\n", ""),
            "a context manager",
            id="it is a plain generator",
        ),
        pytest.param(
            OPS_SCOPED.replace("    global _MODE, _LIB\n", ""),
            "the global statement",
            id="no global",
        ),
        pytest.param("", "set_batch_invariant_mode", id="there is none"),
    ],
)
def test_a_scope_that_is_not_clear_is_a_conflict(scoped: str, match: str) -> None:
    check_conflict(SEAM, {OPS: batch_invariant_ops(scoped=scoped)}, match=match)


def test_a_disable_without_its_global_statement_is_a_conflict() -> None:
    disable = OPS_DISABLE.replace("    global _MODE, _LIB, _bmm\n", "    reset()\n")
    check_conflict(
        SEAM,
        {OPS: batch_invariant_ops(disable=disable)},
        match="global statement of disable_",
        at="def disable_batch_invariant_mode",
    )


def test_a_disable_in_another_module_does_not_share_the_flag() -> None:
    check_conflict(
        SEAM,
        {OPS: batch_invariant_ops(disable=""), "srt/leave.py": OPS_DISABLE},
        match="whose flag it shares",
        at="def disable_batch_invariant_mode",
    )


def test_a_variable_named_is_npu_is_a_conflict() -> None:
    check_conflict(
        SEAM,
        {OPS: batch_invariant_ops(head=OPS_HEAD + "is_npu = detect()\n")},
        match="found a variable",
        at="is_npu = detect()",
    )


def test_an_import_for_types_only_is_not_relied_upon() -> None:
    head = OPS_HEAD + "if TYPE_CHECKING:\n    from x import is_npu\n"
    source = batch_invariant_ops(head=head)
    check_applied(SEAM, {OPS: source}, {OPS: with_edits(source, hand_over_edits())})


def test_is_npu_that_no_utility_module_has_is_a_conflict() -> None:
    check_conflict(
        SEAM,
        {COMMON: common().replace("def is_npu", "def on_npu")},
        match="a function in srt/utils",
    )


def test_the_result_leaves_the_mode_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    library = SimpleNamespace(_destroy=lambda: None)

    def enable(key: str, bmm: bool) -> SimpleNamespace:
        calls.append(f"enable {key} {bmm}")
        return library

    ops = SimpleNamespace(
        enable=enable, disable=lambda: calls.append("disable"), bmm_enabled=lambda: False
    )
    package = "sglang.srt.hardware_backend.npu.batch_invariant_ops"
    for name, content in {
        package: SimpleNamespace(npu_ops=ops),
        "sglang.srt.utils.common": SimpleNamespace(is_npu=lambda: True),
    }.items():
        monkeypatch.setitem(sys.modules, name, content)
    source = check_edited(SEAM, {}, OPS).partition("_bmm = None\n")[2]
    module = ModuleType("ops")
    module.__dict__.update(
        contextlib=contextlib,
        torch=SimpleNamespace(bmm=None),
        get_dispatch_device_backend=lambda: "NPU",
        _MODE=False,
        _LIB=None,
        _bmm=None,
    )
    exec(source, module.__dict__)
    with module.set_batch_invariant_mode():
        assert module._MODE
    assert not module._MODE
    assert calls == ["enable NPU True", "disable"]
    module.enable_batch_invariant_mode(False)
    scope = module.set_batch_invariant_mode(False)
    scope.__enter__()
    assert not module._MODE
    assert not scope.__exit__(KeyError, KeyError(), None)
    assert module._MODE
    assert calls[2:] == ["enable NPU False", "disable", "enable NPU False"]
    _, _, files = judge(SEAM)
    assert files[OPS].decode().endswith("_MODE, _LIB = before\n")
