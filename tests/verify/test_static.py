"""The static checks: what a patched package passes, and what each check catches."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.verify import static
from sgl_npu_patch.verify.static.judged import judge
from tests.helpers import ATTENTION, COMMON, NATIVE_OPS, OPS, SAMPLER, SERVER_ARGS
from tests.upstream.releases import release_tree
from tests.upstream.trees import patched_tree
from tests.verify.checked import (
    Sources,
    edited,
    failures,
    original,
    patch,
    patched,
    static_checks,
)

NPU_OPS = f"{PROJECT.vendor_folder}/npu_ops.py"
GUARDS = f"{PROJECT.vendor_folder}/launch_guards.py"
FILTERED = "top_k_top_p_min_p_sampling_from_logits_ascend"


def fails(sources: Sources, check: str) -> Result:
    """Insist that one check fails, and that it says where, what and what to do."""
    result = static_checks(sources, [check])[check]
    assert result.verdict == "fail", result
    assert result.seam == check.partition(".")[0]
    assert result.site is not None
    assert result.site.path.parts[0] == "sglang"
    assert result.expected
    assert result.found
    assert result.action
    return result


def passes(sources: Sources, *checks: str) -> None:
    found = static_checks(sources, checks)
    assert [(r.id, r.verdict) for r in found.values()] == [(c, "pass") for c in found]
    assert found


def test_a_patched_package_passes() -> None:
    results = static_checks(patched())
    assert failures(results) == []
    said = {name.partition(".")[0] for name, r in results.items() if r.verdict == "pass"}
    # The claim is gone, so that there is nothing to look at any more.
    assert set(SERIES) - said == {"attention_comment"}


def test_an_unpatched_package_fails_for_every_seam() -> None:
    results = static_checks(original())
    assert [n for n in failures(results) if n.endswith(".in_place")] == [
        f"{seam}.in_place" for seam in SERIES
    ]


def test_annotations_of_assignments_change_no_verdict() -> None:
    def annotated(text: bytes) -> bytes:
        return re.sub(rb"(?m)^( +[a-z]\w*) = ", rb"\1: object = ", text)

    published = original()
    sources = {path: annotated(text) for path, text in published.items()}
    assert sources != published
    found, expected = (static_checks(patch(each)) for each in (sources, published))
    assert {r.id: r.verdict for r in found.values()} == {r.id: r.verdict for r in expected.values()}


@pytest.mark.parametrize("version", ["0.5.3.post2", "0.5.9", "0.5.12.post1"])
def test_a_patched_release_passes(version: str) -> None:
    judged = judge(open_directory(patched_tree(version), PROJECT))
    assert [r for r in static.check(judged) if r.verdict == "fail"] == []


def test_a_native_release_lacks_the_repairs() -> None:
    judged = judge(open_directory(release_tree("0.5.23"), PROJECT))
    results = {r.id: r for r in static.check(judged)}
    in_place = {name.partition(".")[0] for name in failures(results) if name.endswith(".in_place")}
    ours = {"npu_ops", "launch_guards", "penalties", "seeded_sampling"}
    assert in_place == {"batch_invariant", "sampler", *ours}
    assert results["device_dispatch.in_place"].verdict == "pass"


def test_a_repaired_release_passes_and_its_gaps_are_told() -> None:
    judged = judge(open_directory(patched_tree("0.5.23"), PROJECT))
    results = {r.id: r for r in static.check(judged)}
    # The tree of the tests lacks sglang.kernels, where the sampler's hash is.
    assert failures(results) == ["sampler.names_resolve"]
    assert "fused_attention_v2_not_replaced" in results["batch_invariant.in_place"].message


def test_conflict_is_told_with_its_evidence() -> None:
    sources = edited(SAMPLER, ("_sample_from_logits", "_draw_from_logits"), count=2)
    result = fails(sources, "sampler.in_place")
    assert "_sample_from_logits" in result.expected
    assert "restore the name" in result.action


def test_code_that_parses_but_does_not_compile() -> None:
    sources = edited(OPS, ("\n\ndef triton_mm(a, b):", "\n\nreturn\n\n\ndef triton_mm(a, b):"))
    result = fails(sources, "batch_invariant.compiles")
    assert "outside function" in result.found


@pytest.mark.parametrize(
    ("path", "old", "new", "check", "name"),
    [
        (OPS, "    if is_npu():\n", "    if is_npuu():\n", "batch_invariant", "is_npuu"),
        (SAMPLER, "@torch.compile(", "@tortch.compile(", "sampler", "tortch"),
        (SAMPLER, "import torch_npu\n", "pass\n", "sampler", "torch_npu"),
        (SERVER_ARGS, "import os\n", "", "launch_guards", "os"),
        (
            OPS,
            "_MODE = False\n_LIB = None\n_bmm = None\n",
            "_LIB = None\n_bmm = None\n",
            "",
            "",
        ),
    ],
    ids=["renamed", "decorator", "conditional import", "import", "bound by a global statement"],
)
def test_names_that_nothing_binds(path: str, old: str, new: str, check: str, name: str) -> None:
    sources = patched()
    text = sources[path].decode()
    assert old in text
    sources[path] = text.replace(old, new).encode()
    if not check:
        passes(sources, "batch_invariant.names_resolve")
        return
    results = static_checks(sources, [f"{check}.names_resolve", f"{check}.in_place"])
    found = [r for r in results.values() if r.verdict == "fail"]
    assert found
    assert any(name in r.expected + r.found + r.code for r in found)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({COMMON: "def is_there():\n    return False\n"}, "no such name"),
        ({"srt/layers/hashing.py": None}, "no such module"),
    ],
)
def test_imports_that_lead_nowhere(changes: dict[str, str | None], found: str) -> None:
    sources = patched()
    for path, text in changes.items():
        if text is None:
            del sources[path]
        else:
            sources[path] = text.encode()
    seam = "sampler"
    assert found in fails(sources, f"{seam}.names_resolve").found


def test_names_handed_on_by_a_package() -> None:
    sources = edited(SAMPLER, ("sglang.srt.utils.common", "sglang.srt.utils"))
    sources["srt/utils/__init__.py"] = b"from sglang.srt.utils.common import *\n"
    passes(sources, "sampler.names_resolve")
    sources["srt/utils/__init__.py"] = b"from .common import is_npu\n"
    passes(sources, "sampler.names_resolve")
    sources["srt/utils/__init__.py"] = b"from .common import is_cuda\n"
    assert "is_npu" in fails(sources, "sampler.names_resolve").expected


CALLER = "srt/layers/another.py"
HEAD = f"from sglang.srt.layers.sampler import Sampler, {FILTERED}\n\n\n"


@pytest.mark.parametrize(
    "source",
    [
        f"x = {FILTERED}(1, 2, 3, 4, 5, 6, 7)\n",
        f"x = {FILTERED}(1, 2, 3, 4, 5, sampling_seed=6, positions=7)\n",
        "def f(s):\n    return s._forward_ascend_backend(1, 2, 3, 4, positions=5)\n",
        (
            "class Own(Sampler):\n    def f(self):\n"
            "        return self._sample_from_logits(1, 2, 3, 4)\n"
        ),
        "def f(s):\n    return Sampler._sample_from_logits(s, 1, 2, 3, 4)\n",
        (
            "class Own(Sampler):\n    def _sample_from_logits(self, *args, **kwargs):\n"
            "        return super()._sample_from_logits(*args, **kwargs)\n"
        ),
        # Of another family of classes, which only shares the name.
        (
            "class Other:\n    def _sample_from_logits(self, logits):\n        return logits\n\n"
            "    def f(self):\n        return self._sample_from_logits(1)\n"
        ),
        f'__all__ = ["{FILTERED}"]\n',
    ],
)
def test_calls_that_bind(source: str) -> None:
    sources = patched() | {CALLER: (HEAD + source).encode()}
    passes(sources, "sampler.calls_bind")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f"x = {FILTERED}(1, 2, 3, 4, 5)\n", "missing a required argument: 'sampling_seed'"),
        (f"x = {FILTERED}(1, 2, 3, 4, 5, 6, 7, 8)\n", "too many positional arguments"),
        (f"x = {FILTERED}(1, 2, 3, 4, 5, 6, place=7)\n", "'positions'"),
        ("def f(s):\n    return s._forward_ascend_backend(1, 2, 3, 4)\n", "'positions'"),
        (
            (
                "class Own(Sampler):\n    def f(self):\n"
                "        return super()._sample_from_logits(1, 2, 3)\n"
            ),
            "'positions'",
        ),
        (
            (
                "class Between(Sampler):\n    pass\n\n\nclass Own(Between):\n"
                "    def _sample_from_logits(self, logits, info, simple):\n        return logits\n"
            ),
            "too many positional arguments",
        ),
        ("def f(s, *a):\n    return s._sample_from_logits(*a)\n", "cannot be told"),
        ("def f(s, a):\n    return s._sample_from_logits(**a)\n", "cannot be told"),
        ('def f(s):\n    return getattr(s, "_sample_from_logits")\n', "cannot be told"),
        ("def f(s):\n    return map(s._sample_from_logits, [])\n", "cannot be told"),
        (
            f"from sglang.srt.layers.sampler import {FILTERED} as draw\n\nx = draw(1)\n",
            "missing a required argument",
        ),
    ],
)
def test_calls_that_do_not_bind(source: str, found: str) -> None:
    sources = patched() | {CALLER: (HEAD + source).encode()}
    assert found in fails(sources, "sampler.calls_bind").found


def test_calls_of_the_mode_and_of_our_modules() -> None:
    enable = "from sglang.srt.batch_invariant_ops import batch_invariant_ops as ops\n"
    caller = f"{enable}\nops.enable_batch_invariant_mode(%s)\n"
    for given in ("", "False", "enable_bmm=False"):
        sources = patched() | {CALLER: (caller % given).encode()}
        passes(sources, "batch_invariant.calls_bind")
    sources = patched() | {CALLER: (caller % "bmm=False").encode()}
    assert "unexpected keyword" in fails(sources, "batch_invariant.calls_bind").found
    sources = edited(OPS, ("npu_ops.enable(key, enable_bmm)", "npu_ops.enable(key=key)"))
    assert "unexpected keyword" in fails(sources, "npu_ops.calls_bind").found
    for call in ("launch_guards.apply()", "launch_guards.decide(self, 1)"):
        sources = edited(SERVER_ARGS, ("launch_guards.apply(self)", call))
        assert "argument" in fails(sources, "launch_guards.calls_bind").found


@pytest.mark.parametrize(
    "source",
    [
        "from torch_npu import npu_add_rms_norm\n",
        "if True:\n    from torch_npu import npu_fused_infer_attention_score as attend\n",
        "import torch_npu\n\nnorm = torch_npu.npu_add_rms_norm\n",
        "import torch\n\nattend = torch.ops.npu.npu_fused_infer_attention_score.out\n",
        "import torch\n\n\nclass A:\n    table = {1: torch.ops.npu.npu_add_rms_norm}\n",
        "import torch_npu\n\n\ndef f(norm=torch_npu.npu_add_rms_norm):\n    return norm\n",
        (
            "import functools\nimport torch_npu\n\n"
            "f = functools.partial(torch_npu.npu_add_rms_norm, epsilon=1)\n"
        ),
        'import torch_npu\n\nnorm = getattr(torch_npu, "npu_add_rms_norm", None)\n',
    ],
)
def test_operators_taken_by_value(source: str) -> None:
    sources = patched() | {"srt/layers/norm.py": source.encode()}
    result = fails(sources, "batch_invariant.operators_by_attribute")
    assert result.site is not None
    assert result.site.path == PurePosixPath("sglang/srt/layers/norm.py")


@pytest.mark.parametrize(
    "source",
    [
        "import torch_npu\n\n\ndef f(x):\n    return torch_npu.npu_add_rms_norm(x)\n",
        "from torch_npu import npu_dynamic_quant\n",
        '"""Like torch_npu.npu_add_rms_norm."""\n',
        "f = lambda x: torch_npu.npu_add_rms_norm(x)\n",
        'import torch_npu\n\nfused = hasattr(torch_npu, "npu_add_rms_norm")\n',
    ],
)
def test_operators_looked_up_at_each_call(source: str) -> None:
    sources = patched() | {"srt/layers/norm.py": source.encode()}
    passes(sources, "batch_invariant.operators_by_attribute")


@pytest.mark.parametrize("module", PROJECT.vendored)
def test_vendored_modules(module: str) -> None:
    path = f"{PROJECT.vendor_folder}/{module}.py"
    sources = patched()
    text = sources[path].decode()
    result = fails(
        sources | {path: text.replace("import", "iMport", 1).encode()}, f"{module}.unmodified"
    )
    assert "edited" in result.found
    assert result.site is not None
    assert result.site.line > 0
    older = text.replace("sgl-npu-patch 0", "sgl-npu-patch 0.0.0.dev1+0", 1).encode()
    assert "older" in fails(sources | {path: older}, f"{module}.unmodified").found
    assert "foreign" in fails(sources | {path: b"x = 1\n"}, f"{module}.unmodified").found
    del sources[path]
    assert "missing" in fails(sources, f"{module}.unmodified").found
    turned = {path: text.replace("\n", "\r\n").encode()}
    passes(patched() | turned, f"{module}.unmodified")


def test_attention_backend_listed_once() -> None:
    entry = '"triton", "ascend"]\n\nRADIX'
    check = "backend_lists.lists_ascend_once"
    assert "0 times" in fails(edited(SERVER_ARGS, (entry, '"triton"]\n\nRADIX')), check).found
    twice = edited(SERVER_ARGS, (entry, '"ascend", "triton", "ascend"]\n\nRADIX'))
    assert "2 times" in fails(twice, check).found
    later = "\n\nDETERMINISTIC_ATTENTION_BACKEND_CHOICES.append('ascend')\n\n\nclass ServerArgs"
    again = edited(SERVER_ARGS, ("\n\nclass ServerArgs", later))
    assert "2 times" in fails(again, check).found


RADIX = 'RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ["fa3", "triton", "ascend"]'
LOOP = (
    "            if self.use_fia:\n                for n in batch.extend_seq_lens_cpu:\n"
    "                    out = torch_npu.npu_fused_infer_attention_score(q, n)\n"
)


def test_radix_cache_off_where_it_is_safe() -> None:
    closed = edited(SERVER_ARGS, (RADIX, RADIX.replace(', "ascend"', "")))
    assert "is off" in fails(closed, "radix_cache.gate_follows_prefill").found


def test_radix_cache_on_where_prefill_ignores_it() -> None:
    sources = patched()
    text = sources[ATTENTION].decode()
    start = text.index("            if self.use_fia:")
    end = text.index("            else:", start)
    sources[ATTENTION] = (text[:start] + LOOP + text[end:]).encode()
    result = fails(sources, "radix_cache.gate_follows_prefill")
    assert "is on" in result.found
    assert "prefill at" in result.action
    shut = sources[SERVER_ARGS].decode().replace(RADIX, RADIX.replace(', "ascend"', ""))
    passes(sources | {SERVER_ARGS: shut.encode()}, "radix_cache.gate_follows_prefill")


def test_entry_in_another_list_of_the_handler() -> None:
    tail = "            if self.tp_size > 1:\n"
    deepseek = (
        '            if self.deepseek and self.attention_backend not in ["fa3", "ascend"]:\n'
        "                raise ValueError\n\n"
    )
    check = "radix_cache.no_other_list_has_ascend"
    fails(edited(SERVER_ARGS, (tail, deepseek + tail)), check)
    passes(edited(SERVER_ARGS, (tail, deepseek.replace(', "ascend"', "") + tail)), check)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('!= "ascend":', '== "ascend":'),
        ('!= "ascend":', '!= "pytorch":'),
        ('if self.sampling_backend != "ascend":', "if self.tp_size:"),
    ],
)
def test_sampling_backend_lost(old: str, new: str) -> None:
    fails(edited(SERVER_ARGS, (old, new)), "sampling_backend.keeps_ascend")


@pytest.mark.parametrize(
    "choice",
    [
        '"ascend" if self.sampling_backend == "ascend" else "pytorch"',
        '"pytorch" if self.sampling_backend != "ascend" else "ascend"',
    ],
)
def test_sampling_backend_kept_by_a_choice(choice: str) -> None:
    text = patched()[SERVER_ARGS].decode()
    start = text.index('            if self.sampling_backend != "ascend":')
    end = text.index("            if self.attention_backend not in DETERMINISTIC")
    chosen = f"            self.sampling_backend = {choice}\n\n"
    sources = patched() | {SERVER_ARGS: (text[:start] + chosen + text[end:]).encode()}
    passes(sources, "sampling_backend.keeps_ascend")


def test_radix_cache_kept_by_an_else() -> None:
    gate = "if self.attention_backend not in RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND:\n"
    kept = gate.replace("not in", "in") + "                pass\n            else:\n"
    passes(edited(SERVER_ARGS, (gate, kept)), "radix_cache.gate_follows_prefill")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('key = "NPU"', 'key = "PrivateUse1"'),
        ('    elif is_npu():\n        key = "NPU"\n', ""),
        ('key = "CUDA"', 'key = "NPU"'),
        ('key = "XPU"', 'key = "CUDA"'),
    ],
)
def test_dispatch_keys(old: str, new: str) -> None:
    fails(edited(COMMON, (old, new)), "device_dispatch.answers_npu")


def test_layout() -> None:
    flag = "    if is_npu():\n"
    sources = patched()
    text = sources[OPS].decode()
    trailing = text.replace(flag, "    if is_npu():  \n", 1)
    fails(sources | {OPS: trailing.encode()}, "batch_invariant.layout_kept")
    turned = text.replace(flag, "    if is_npu():\r\n", 1)
    assert "r" in fails(sources | {OPS: turned.encode()}, "batch_invariant.layout_kept").found
    mixed = edited(SERVER_ARGS, ("    launch_guards,\n", "\tlaunch_guards,\n"))
    fails(mixed, "launch_guards.layout_kept")
    longer = RADIX.replace("[", "[" + '"trtllm_mha", ' * 3)
    long = edited(
        SERVER_ARGS, ("self.attention_backend not in RADIX", "True in RADIX"), (RADIX, longer)
    )
    fails(long, "radix_cache.layout_kept")
    # A file that has such lines of its own sets no better example.
    own = long[SERVER_ARGS].decode().replace("import os\n", f"import os\n\nx = '{'y' * 90}'\n")
    passes(long | {SERVER_ARGS: own.encode()}, "radix_cache.layout_kept")


def test_no_false_alarms() -> None:
    """Renamed locals, other layout, moved functions and more parameters change nothing."""
    sources = patched()
    text = sources[SAMPLER].decode()
    text = text.replace("batch_next", "tokens").replace("probs = torch", "probs  =  torch")
    draw = text.index("@torch.compile")
    moved = text.index("class Sampler")
    text = text[:moved] + text[draw:] + "\n\n" + text[moved:draw]
    sources[SAMPLER] = text.encode()
    args = sources[SERVER_ARGS].decode()
    sources[SERVER_ARGS] = args.replace(
        "_handle_deterministic_inference(self)", "_handle_deterministic_inference(self, more=None)"
    ).encode()
    assert failures(static_checks(sources)) == []


def test_upstreams_module_is_not_called_ours() -> None:
    sources = patched() | {NATIVE_OPS: b"import torch\n"}
    assert failures(static_checks(sources)) == []


def test_every_check_has_one_line_of_meaning() -> None:
    for check in static.CHECKS.values():
        assert check.meaning.endswith(".")
        assert len(check.meaning) <= 100
