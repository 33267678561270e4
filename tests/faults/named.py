"""List faults that a wrong patch, a merge or a well-meant edit would bring in.

Each is an edit of a patched release that some check must find, under the right seam.
"""

from __future__ import annotations

from tests.faults.drawn import DRAWN
from tests.faults.fault import NEWEST, WITHHELD, WITHOUT_GATE, Fault


def _sampler(found_by: str, *edits: tuple[str, str]) -> Fault:
    return Fault("sampler", tuple(found_by.split()), tuple(("sampler", *edit) for edit in edits))


def _mode(found_by: str, *edits: tuple[str, str], release: str = NEWEST) -> Fault:
    texts = tuple(("mode", *edit) for edit in edits)
    return Fault("batch_invariant", tuple(found_by.split()), texts, release)


def _handler(
    seam: str,
    found_by: str,
    *edits: tuple[str, str],
    release: str = NEWEST,
    also: tuple[str, ...] = (),
) -> Fault:
    """Edit the handler, where a difference that nothing marks is every seam's that edits it."""
    texts = tuple(("handler", *edit) for edit in edits)
    return Fault(seam, tuple(found_by.split()), texts, release, also)


def _ops(found_by: str, *edits: tuple[str, str], also: tuple[str, ...] = ()) -> Fault:
    """Edit the vendored module, of which what it does must be found too, not only the edit."""
    texts = tuple(("npu_ops", *edit) for edit in edits)
    return Fault("npu_ops", tuple(found_by.split()), texts, also=("batch_invariant", *also))


def _guards(found_by: str, *edits: tuple[str, str]) -> Fault:
    texts = tuple(("launch_guards", *edit) for edit in edits)
    return Fault("launch_guards", tuple(found_by.split()), texts)


_COPIED = """
            if penalties.follows(self):
"""


def _penalties(found_by: str, *edits: tuple[str, str, str]) -> Fault:
    return Fault("penalties", tuple(found_by.split()), edits)


def _attention(found_by: str, *edits: tuple[str, str]) -> Fault:
    texts = tuple(("attention", *edit) for edit in edits)
    return Fault("attention_comment", tuple(found_by.split()), texts)


_DRAW_SIMPLE = "weights, sampling_info.sampling_seed, positions\n"
_MASK_SIMPLE = 'weights = logits.double().masked_fill(probs == 0, float("-inf"))'
_DRAW = "return multinomial_with_seed(weights, sampling_seed, positions).view(-1)"
_DRAW_FUSED = (
    'weights = logits.double().masked_fill(probs_top_k_top_p == 0, float("-inf"))\n'
    f"            {_DRAW}"
)
_DRAW_SORTED = (
    "kept = torch.zeros_like(probs).scatter(-1, probs_idx, probs_sort)\n"
    '            weights = logits.double().masked_fill(kept == 0, float("-inf"))\n'
    f"            {_DRAW}"
)
_RANK = """\
rank = multinomial_with_seed(torch.log(probs_sort), sampling_seed, positions)
            """
_GREEDY = """\
                batch_next_token_ids = torch.where(
                    sampling_info.top_ks == 1,
                    torch.argmax(logits, dim=-1),
                    batch_next_token_ids,
                )
"""
_CLAMP = "x.clamp_(max=1.0 - 2.0**-32)"
_COMPILE = "@torch.compile(dynamic=True, disable=is_npu())"
_CALLED = "return_logprob,\n                    positions,\n"
_PARAMETER = "return_logprob: bool,\n        positions: torch.Tensor,\n"

_ENABLE = """\
        _batch_invariant_LIB = npu_ops.enable(dispatch_key, enable_bmm)
        _batch_invariant_MODE = True
        return
"""
_ENTER = """\
    if is_npu():
        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops

        _"""
_LEAVE = """\
        try:
            yield
        finally:
            if was_enabled:
                enable_batch_invariant_mode(enable_bmm=was_bmm)
            else:
                disable_batch_invariant_mode()
        return
"""
_CUDA_MM = '_batch_invariant_LIB.impl("aten::mm", mm_batch_invariant, dispatch_key)'

_CHOICES = 'DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["flashinfer", "fa3", "triton", "ascend"]'
_RADIX = 'RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND = ["fa3", "triton", "ascend"]'
_PLAIN_CHOICES = _CHOICES.replace(', "ascend"', "")
_PLAIN_RADIX = _RADIX.replace(', "ascend"', "")
_SAMPLING = 'if self.sampling_backend != "ascend":'
_FORCED = """\
                self.sampling_backend = "pytorch"
                logger.warning(
                    "Sampling backend is set to pytorch for deterministic inference."
                )
"""
_DEEPSEEK = 'if self.attention_backend not in ["fa3", "triton"]:'
_GATE = 'if self.attention_backend == "ascend":\n                self.disable_radix_cache = True'
_GUARDS = """\
            if is_npu():
                from sglang.srt.hardware_backend.npu.batch_invariant_ops import (
                    launch_guards,
                )

                launch_guards.apply(self)
"""
_REBIND_ATTENTION = "_rebind(namespace, _ATTENTION, attention)"
_REBIND_WORKSPACE = "_rebind(namespace, _MAX_WORKSPACE, max_workspace, if_present=True)"
_REBIND_NORM = "_rebind(namespace, _ADD_RMS_NORM, add_rms_norm, if_present=True)"
_FOUND = "    attention = getattr(torch.ops.batch_invariant_ops, _EXTENSION_ATTENTION)\n"
_BOTH = "for namespace in (torch.ops.npu, torch_npu):"
_RMS = "normed, rstd = torch_npu.npu_rms_norm(total, gamma, epsilon)"
_ATTENTION_CALL = """\
        if "out" in kwargs:
            self.out(*args, **kwargs)
        return self._operator(*args, **kwargs)
"""
_ADDMM = "return product if beta == 0 else torch.add(product, addend, alpha=beta)"

_CLAIM = '''\
                """FIA supports multi-bs in the current version of CANN"""
'''
_BELOW = """\
                q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
                num_token_padding = q.shape[0]
"""


FAULTS: dict[str, Fault] = {
    # What a request draws.
    "positions of another request": _sampler(
        "rows_use_their_own_seed_and_position",
        (_DRAW_SIMPLE, _DRAW_SIMPLE.replace("positions", "positions.roll(1)")),
    ),
    "positions of the whole batch in a part of it": _sampler(
        "neighbours_change_nothing",
        ("positions[rows],", "positions[: int(rows.sum())],"),
    ),
    "seeds of another request": _sampler(
        "rows_use_their_own_seed_and_position batch_order_changes_nothing",
        (_DRAW_SORTED, _DRAW_SORTED.replace("sampling_seed,", "sampling_seed.flip(0),")),
    ),
    "one seed for the batch": _sampler(
        "batch_order_changes_nothing",
        (
            _DRAW_SIMPLE,
            "weights, sampling_info.sampling_seed[:1].expand(len(positions)), positions\n",
        ),
    ),
    "seed and position exchanged": _sampler(
        "rows_use_their_own_seed_and_position seed_and_position_matter",
        (_DRAW_FUSED, _DRAW_FUSED.replace("sampling_seed, positions", "positions, sampling_seed")),
    ),
    "the logarithm taken twice": _sampler(
        "draws_follow_the_distribution logarithm_is_taken_once",
        (_MASK_SIMPLE, "weights = torch.log(probs.double()).log()"),
    ),
    "sampling by rank on the sorted path": _sampler(
        "neighbours_change_nothing",
        (
            _DRAW_SORTED,
            f"{_RANK}return probs_idx.gather(-1, rank.view(-1, 1)).view(-1)",
        ),
    ),
    "the filter left out of sampling by seed": _sampler(
        "draws_follow_the_distribution",
        (_DRAW_FUSED, _DRAW_FUSED.replace("probs_top_k_top_p == 0", "probs_top_k_top_p < 0")),
    ),
    "a seeded batch sampled by the global generator": _sampler(
        "global_generator_is_not_used",
        (f"        if sampling_seed is not None:\n            {_DRAW_FUSED}\n", ""),
    ),
    "the clamp missing": _sampler("largest_hash_is_an_ordinary_draw", (_CLAMP, "pass")),
    "the clamp off the NPU only": _sampler(
        "largest_hash_is_an_ordinary_draw",
        ("if not torch.compiler.is_compiling() and is_npu():", "if not is_npu():"),
    ),
    "compiled on the NPU": _sampler(
        "not_compiled_on_an_npu", (_COMPILE, "@torch.compile(dynamic=True)")
    ),
    "compiled nowhere": Fault(
        "sampler",
        ("seeded_sampling.other_backends_keep_their_tokens",),
        (("sampler", _COMPILE, "@torch.compile(dynamic=True, disable=True)"),),
        also=("seeded_sampling",),
    ),
    "the values of min-p forgotten": _sampler(
        "min_p_works_on_the_fused_path", (".max(dim=-1).values * min_ps", ".max(dim=-1) * min_ps")
    ),
    "one path for the batch instead of for each row": _sampler(
        "neighbours_change_nothing",
        ("if fusable.any() and not fusable.all():", "if False:"),
    ),
    "greedy rows sampled": _sampler(
        "greedy_takes_the_first_of_ties", (_GREEDY, " " * 16 + "pass\n")
    ),
    "sampled rows taken greedily": _sampler(
        "draws_follow_the_distribution seed_and_position_matter",
        ("sampling_info.top_ks == 1,", "sampling_info.top_ks >= 1,"),
    ),
    "top-p in another type than the logits": _sampler(
        "top_p_has_the_type_of_logits", ("top_ps = top_ps.to(logits.dtype)", "pass")
    ),
    "the tail cut by rounding": _sampler(
        "no_top_p_keeps_the_tail",
        ('top_ps = top_ps.masked_fill(top_ps >= 1.0, float("inf"))', "pass"),
    ),
    "positions with a default": _sampler(
        "forgotten_positions_fail_loudly",
        (_PARAMETER, _PARAMETER.replace("Tensor,", "Tensor = None,")),
    ),
    "positions not handed on": _sampler("calls_bind", (_CALLED, "return_logprob,\n")),
    "another tensor handed on as positions": _sampler(
        "rows_use_their_own_seed_and_position",
        (_CALLED, "return_logprob,\n                    sampling_info.top_ks,\n"),
    ),
    "unseeded batches sampled by seed": _sampler(
        "unseeded_draws_are_multinomial unseeded_draws_are_the_originals",
        (
            f"        if sampling_seed is not None:\n            {_DRAW_FUSED}",
            f"        sampling_seed = top_ks\n        if True:\n            {_DRAW_FUSED}",
        ),
    ),
    # How the mode is entered and left.
    "the return missing behind the NPU's registrations": _mode(
        "nothing_of_the_cuda_set_is_registered", (_ENABLE, _ENABLE.replace("        return\n", ""))
    ),
    "the guard of the mode inverted": _mode(
        "mm_is_batch_invariant other_devices_do_what_they_did",
        (_ENTER, _ENTER.replace("is_npu()", "not is_npu()")),
    ),
    "the flag not set": _mode(
        "a_draft_worker_may_enable_again the_mode_can_be_entered_again",
        (_ENABLE, _ENABLE.replace("        _batch_invariant_MODE = True\n", "")),
    ),
    "the library not kept": _mode(
        "leaving_gives_the_kernels_back",
        (_ENABLE, _ENABLE.replace("_batch_invariant_LIB = ", "")),
    ),
    "the choice of bmm not handed on": _mode(
        "without_bmm_it_alone_stays_native", (_ENABLE, _ENABLE.replace(", enable_bmm", ""))
    ),
    "registered for CUDA on an NPU": _mode(
        "mm_is_batch_invariant",
        ('npu_ops.enable("NPU", enable_bmm)', 'npu_ops.enable("CUDA", enable_bmm)'),
        release=WITHHELD,
    ),
    "the rebinding not undone": _mode(
        "leaving_gives_the_operators_back", ("        npu_ops.disable()\n", "        pass\n")
    ),
    "the rebinding undone by a mode that was off": _mode(
        "in_place", ("if _batch_invariant_MODE and is_npu():", "if is_npu():")
    ),
    "a scoped mode not left by an exception": _mode(
        "a_scoped_mode_ends_as_it_began",
        (_LEAVE, _LEAVE.replace("try:", "if True:").replace("finally:", "if True:")),
    ),
    "a scoped mode that breaks the outer one": _mode(
        "a_scoped_mode_ends_as_it_began scoped_modes_can_be_nested",
        (_LEAVE, _LEAVE.replace("if was_enabled:", "if False:")),
    ),
    "a scoped mode that forgets the choice of bmm": _mode(
        "a_scoped_mode_keeps_the_choice_of_bmm",
        (_LEAVE, _LEAVE.replace("enable_bmm=was_bmm", "")),
    ),
    "a scoped mode that destroys the library as on CUDA": _mode(
        "a_scoped_mode_gives_the_operators_back",
        (_LEAVE, _LEAVE.replace("        return\n", "        enabled = was_enabled\n")),
    ),
    "CUDA registrations changed": _mode(
        "other_devices_do_what_they_did", (_CUDA_MM, _CUDA_MM.replace("aten::mm", "aten::matmul"))
    ),
    "a CUDA registration dropped": _mode("other_devices_do_what_they_did", (_CUDA_MM, "pass")),
    # What is registered and rebound, and what it computes.
    "mm unregistered": _ops("batch_invariant.mm_is_batch_invariant", ('        "mm": mm,\n', "")),
    "matmul unregistered": _ops(
        "batch_invariant.matmul_is_batch_invariant", ('        "matmul": matmul,\n', "")
    ),
    "addmm unregistered": _ops(
        "batch_invariant.addmm_is_batch_invariant", ('        "addmm": addmm,\n', "")
    ),
    "bmm unregistered": _ops(
        "batch_invariant.bmm_is_batch_invariant", ('kernels["bmm"] = bmm', "pass")
    ),
    "mean.dim unregistered": _ops(
        "batch_invariant.mean_is_batch_invariant", ('        "mean.dim": mean,\n', "")
    ),
    "mean unregistered": _ops(
        "a_mean_over_everything_is_replaced", ('        "mean": mean_all,\n', "")
    ),
    "_log_softmax unregistered": _ops(
        "batch_invariant.log_softmax_is_batch_invariant",
        ('        "_log_softmax": log_softmax,\n', ""),
    ),
    "torch.ops.npu not rebound": _ops(
        "batch_invariant.attention_of_torch_ops_is_batch_invariant",
        (_BOTH, "for namespace in (torch_npu,):"),
    ),
    "torch_npu not rebound": _ops(
        "batch_invariant.attention_of_torch_npu_is_batch_invariant",
        (_BOTH, "for namespace in (torch.ops.npu,):"),
    ),
    "the workspace not rebound": _ops(
        "batch_invariant.workspace_is_that_of_the_replacement", (_REBIND_WORKSPACE, "pass")
    ),
    "add_rms_norm not rebound": _ops(
        "batch_invariant.add_rms_norm_is_batch_invariant", (_REBIND_NORM, "pass")
    ),
    "the fused attention not rebound": _ops(
        "batch_invariant.attention_of_torch_npu_is_batch_invariant", (_REBIND_ATTENTION, "pass")
    ),
    ".out that falls back to the device kernel": _ops(
        "a_missing_overload_says_which_version_has_it",
        (
            '        _raise_needs_version_2(f"{_ATTENTION}.out")',
            "        return _state.originals[torch_npu, _ATTENTION].out(*args, **kwargs)",
        ),
    ),
    "the overloads lost": _ops(
        "attention_keeps_its_overloads",
        (
            _FOUND,
            _FOUND.replace("attention", "operator", 1)
            + "    attention = lambda *args, **kwargs: operator(*args, **kwargs)\n",
        ),
    ),
    "arguments of the attention dropped": _ops(
        "attention_takes_what_the_operator_takes batch_invariant.extension_1_is_enough",
        (
            _ATTENTION_CALL,
            _ATTENTION_CALL.replace("self._operator(*args, **kwargs)", "self._operator(*args)"),
        ),
    ),
    "the rebinding undone to the wrong object": _ops(
        "batch_invariant.leaving_gives_the_operators_back",
        (
            "            setattr(namespace, name, original)\n",
            "            setattr(namespace, name, getattr(torch.ops.npu, name))\n",
        ),
    ),
    "the originals forgotten by a second call": _ops(
        "batch_invariant.a_scoped_mode_gives_the_operators_back in_place unmodified",
        (
            "_state.originals.setdefault((namespace, name), original)",
            "_state.originals[(namespace, name)] = original",
        ),
    ),
    "a failed entry that leaves what it did": _ops(
        "unmodified",
        ("        disable()\n        library._destroy()\n        raise\n", "        raise\n"),
    ),
    "a missing extension not noticed": _ops(
        "batch_invariant.a_missing_extension_is_said",
        ("    _require_extension()\n    if _state", "    if _state"),
    ),
    "the original mm inside the replacement": _ops(
        "batch_invariant.mm_is_batch_invariant",
        (
            '_product("mm", a, b, torch.ops.batch_invariant_ops.npu_mm_batch_invariant)',
            "torch.mm(a, b)",
        ),
    ),
    "strides handed to a kernel that takes none": _ops(
        "products_are_atens", ("kernel(a.contiguous(), b.contiguous())", "kernel(a, b)")
    ),
    "a mean over two axes in the wrong dtype": _ops(
        "means_have_atens_dtype",
        ("return result.reshape(shape).to(result_dtype)", "return result.reshape(shape).float()"),
    ),
    "a mean over the wrong axis": _ops(
        "means_go_over_any_axis", ("permute([*kept, *axes])", "permute([*axes, *kept])")
    ),
    "log-softmax that stays in half precision": _ops(
        "log_softmax_may_be_asked_to_convert",
        ("        tensor = tensor.float()\n", "        pass\n"),
    ),
    "addmm that forgets beta": _ops(
        "addmm_scales_and_adds", (_ADDMM, "return torch.add(product, addend)")
    ),
    "the wrong sum from add_rms_norm": _ops(
        "add_rms_norm_returns_what_the_operator_does",
        ("return normed, rstd, total", "return normed, rstd, x1"),
    ),
    "epsilon not handed on": _ops(
        "add_rms_norm_returns_what_the_operator_does", (_RMS, _RMS.replace(", epsilon", ""))
    ),
    "a comment in the vendored module": _ops(
        "unmodified", ("_ABSENT = object()\n", "_ABSENT = object()  # ours\n")
    ),
    # What is set before worker processes start.
    "what the user set replaced although it suits": _guards(
        "what_suits_in_the_environment_is_kept",
        ("return value.lower() in self.accepts", "return False"),
    ),
    "a weaker setting kept": _guards(
        "the_environment_is_set",
        (
            '        value = os.environ.get(name, "")\n',
            '        value = os.environ.get(name, "")\n        if value:\n            continue\n',
        ),
    ),
    "LCCL forgotten": _guards(
        "the_environment_is_set", ('    "LCCL_DETERMINISTIC": Variable(', '    "LCCL": Variable(')
    ),
    "graphs left on": _guards(
        "capture_and_compilation_are_off", ('    "disable_cuda_graph": True,\n', "")
    ),
    "torch.compile left on": _guards(
        "capture_and_compilation_are_off", ('    "enable_torch_compile": False,\n', "")
    ),
    "graphs off although they can be renewed": _guards(
        "graphs_stay_where_they_can_be_renewed",
        ("if not _graph_capture_supported():", "if True:"),
    ),
    "graphs on whatever torch_npu offers": _guards(
        "capture_and_compilation_are_off",
        ("if not _graph_capture_supported():", "if False:"),
    ),
    "no word about a weaker setting": _guards(
        "the_environment_is_set", ("        if value:\n", "        if False:\n")
    ),
    "a warning repeated": _guards(
        "what_nothing_replaces_is_said", ("        _warned.add(key)\n", "")
    ),
    "the guards never called": _handler(
        "launch_guards", "capture_and_compilation_are_off", (_GUARDS, "")
    ),
    "the guards called off the NPU": _handler(
        "launch_guards",
        "nothing_happens_off_the_npu everything_else_ends_as_before",
        (_GUARDS, _GUARDS.replace("if is_npu()", "if not is_npu()")),
    ),
    "the guards outside deterministic inference": _handler(
        "launch_guards",
        "nothing_happens_without_deterministic_inference",
        (
            _GUARDS,
            _GUARDS.replace("    " * 3, "    " * 2, 1).replace(
                "\n" + "    " * 4, "\n" + "    " * 3
            ),
        ),
    ),
    # Lists, gates and guards of the handler.
    "ascend missing from the list": _handler(
        "backend_lists", "ascend_is_listed_once", (_CHOICES, _PLAIN_CHOICES)
    ),
    "ascend listed twice": _handler(
        "backend_lists", "ascend_is_listed_once", (_CHOICES, _CHOICES[:-1] + ', "ascend"]')
    ),
    "ascend in the place of triton": _handler(
        "backend_lists",
        "other_backends_are_judged_as_before",
        (_CHOICES, _CHOICES.replace('"triton", ', "")),
    ),
    "ascend in the wrong list": _handler(
        "radix_cache",
        "gate_follows_prefill off_where_prefill_ignores_it",
        (_PLAIN_RADIX, _RADIX),
        (_CHOICES, _PLAIN_CHOICES),
        release=WITHHELD,
        also=("backend_lists",),
    ),
    "the radix cache on where it is unsafe": _handler(
        "radix_cache",
        "gate_follows_prefill off_where_prefill_ignores_it",
        (_PLAIN_RADIX, _RADIX),
        release=WITHHELD,
    ),
    "the radix cache off where it is safe": _handler(
        "radix_cache", "on_where_prefill_reads_it", (_RADIX, _PLAIN_RADIX)
    ),
    "the gate missing": _handler(
        "radix_cache",
        "off_where_prefill_ignores_it",
        (_GATE, "if False:\n                self.disable_radix_cache = True"),
        release=WITHOUT_GATE,
    ),
    "DeepSeek models accepted": _handler(
        "radix_cache",
        "deepseek_is_refused_as_before",
        (_DEEPSEEK, _DEEPSEEK.replace('"triton"', '"triton", "ascend"')),
        also=("sampling_backend", "launch_guards"),
    ),
    "the sampling backend forced as before": _handler(
        "sampling_backend",
        "ascend_is_kept",
        (f"            {_SAMPLING}\n", "            if True:\n"),
    ),
    "the sampling backend's guard inverted": _handler(
        "sampling_backend", "ascend_is_kept", (_SAMPLING, _SAMPLING.replace("!=", "=="))
    ),
    "the sampling backend's guard of another attribute": _handler(
        "sampling_backend",
        "others_become_pytorch",
        (_SAMPLING, _SAMPLING.replace("sampling_backend", "attention_backend")),
    ),
    "the warning without the assignment": _handler(
        "sampling_backend",
        "others_become_pytorch",
        (_FORCED, _FORCED.replace('                self.sampling_backend = "pytorch"\n', "")),
    ),
    # The dispatch key.
    "CUDA's dispatch key on an NPU": Fault(
        "device_dispatch",
        ("an_npu_has_its_own_key",),
        (("common", 'dispatch_key = "NPU"', 'dispatch_key = "CUDA"'),),
        also=("batch_invariant", "npu_ops"),
    ),
    "the NPU's dispatch key on an XPU": Fault(
        "device_dispatch",
        ("other_devices_keep_their_key",),
        (("common", 'dispatch_key = "XPU"', 'dispatch_key = "NPU"'),),
        also=("batch_invariant",),
    ),
    "the NPU's dispatch key where there is no accelerator": Fault(
        "device_dispatch",
        ("other_devices_keep_their_key",),
        (
            (
                "common",
                "    elif is_npu():\n        dispatch_key",
                "    elif not is_cuda_alike():\n        dispatch_key",
            ),
        ),
        also=("batch_invariant",),
    ),
    # The claim about the fused attention.
    "the claim left": _attention("in_place", (_BELOW, f"{_CLAIM}{_BELOW}")),
    "another claim taken out": _attention(
        "unchanged_off_npu series.changes_nothing_else",
        (_CLAIM.replace("supports", "will support").replace("current", "later"), ""),
    ),
    "a statement beside the claim taken out": _attention(
        "unchanged_off_npu series.changes_nothing_else", (_BELOW, _BELOW.partition("\n")[2])
    ),
    # What counts in penalties.
    "the newest token not counted": _penalties(
        "each_token_counts_once",
        ("penalties", "if self._input_ids is not None:", "if self._input_ids is None:"),
    ),
    "a token counted when it is known and again": _penalties(
        "each_token_counts_once",
        (
            "batch",
            "            pass\n        elif self.samp",
            "            pass\n        if self.samp",
        ),
    ),
    "one count for two forward passes": _penalties(
        "each_token_counts_once",
        (
            "penalties",
            "[copy.copy(p) for p in orchestrator.penalizers.values()]",
            "list(orchestrator.penalizers.values())",
        ),
    ),
    "a retracted request's tokens forgotten": _penalties(
        "a_retracted_request_keeps_its_counts",
        ("penalties", "        if known:", "        if length < 0:"),
    ),
    "penalties in another order": _penalties(
        "the_order_is_fixed",
        (
            "penalties",
            "key=lambda item: _place(item[0])",
            "key=lambda item: _place(item[0]), reverse=True",
        ),
    ),
    "penalties counted off the NPU too": _penalties(
        "unchanged_off_npu", ("batch", "if is_npu() and penalties.count", "if penalties.count")
    ),
    "a copy for each pass off the NPU too": _penalties(
        "unchanged_off_npu", ("batch_info", _COPIED, f"            pass\n\n        if 1:{_COPIED}")
    ),
    **DRAWN,
}
