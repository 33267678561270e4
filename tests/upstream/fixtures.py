"""List trees that carry the change partly, or in words of their own.

Each fixture is a recipe over a published release. What it changes of the release's statuses stands
beside it: a seam is recognised, completed, or refused with what stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sgl_npu_patch.codemods.upstream.project import PROJECT
from tests.upstream.edited import (
    COMMON,
    NATIVE_OPS,
    OPS,
    SAMPLER,
    SERVER_ARGS,
    Files,
    cut,
    edit,
    judge,
    result,
    sources,
    take,
    within,
)
from tests.upstream.program import SEAMS
from tests.upstream.test_statuses import expected_statuses

NEW = "0.5.12.post1"
OLD = "0.5.9"
OLDER = "0.5.4.post1"
NATIVE = "0.5.13"
GUARDS_MODULE = f"{PROJECT.vendor_folder}/launch_guards.py"

ENABLE = "enable_batch_invariant_mode"
HANDLER = "_handle_deterministic_inference"
FILTERED = "top_k_top_p_min_p_sampling_from_logits_ascend"
CHOICES = "DETERMINISTIC_ATTENTION_BACKEND_CHOICES"
RADIX = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"

FORCED = '            self.sampling_backend = "pytorch"\n'
WARNING = (
    "            logger.warning(\n"
    '                "Sampling backend is set to pytorch for deterministic inference."\n'
    "            )\n"
)
KEY = "    dispatch_key = get_dispatch_device_backend()\n"
LIBRARY = '    _batch_invariant_LIB = torch.library.Library("aten", "IMPL")\n'
FORWARD_ASCEND_CALL = (
    "                    logits, sampling_info, simple_sampling_case, return_logprob\n"
)
TAKES_SIMPLE = "        simple_sampling_case: bool,\n"
"""Stands in two functions; edits of one go through `within`."""


@dataclass(frozen=True)
class Fixture:
    """A recipe, and what it changes of the statuses of its release.

    `refused` are texts that the evidence must hold, by seam.
    """

    version: str
    recipe: Callable[[Files], None]
    changed: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Files:
        """The files of the release after the recipe."""
        files = sources(self.version)
        self.recipe(files)
        return files

    @property
    def statuses(self) -> dict[str, str]:
        """The statuses of the release, but for what the recipe changes."""
        refused = dict.fromkeys(self.refused, "conflict")
        return {**expected_statuses(self.version), **self.changed, **refused}


FIXTURES: dict[str, Fixture] = {}


def fixture(
    *versions: str,
    changed: dict[str, str] | None = None,
    refused: dict[str, str] | None = None,
) -> Callable[[Callable[[Files], None]], Callable[[Files], None]]:
    """Register a recipe under its function's name, once for each release."""

    def register(recipe: Callable[[Files], None]) -> Callable[[Files], None]:
        for version in versions:
            name = f"{recipe.__name__}-{version}"
            assert name not in FIXTURES
            FIXTURES[name] = Fixture(version, recipe, changed or {}, refused or {})
        return recipe

    return register


def patch(files: Files) -> None:
    """Apply the series, as the release's fork would have done before."""
    files.update(result(files, judge(files)))


def list_ascend(files: Files, name: str) -> None:
    old = cut(files, SERVER_ARGS, name, "assignment")
    edit(files, SERVER_ARGS, (old, old.rstrip("]\n") + ', "ascend"]\n'))


@fixture(NEW, OLD, OLDER, changed={"backend_lists": "upstream"})
def the_list_has_ascend(files: Files) -> None:
    list_ascend(files, CHOICES)


@fixture(NEW, changed={"radix_cache": "upstream"})
def the_radix_list_has_ascend(files: Files) -> None:
    list_ascend(files, RADIX)


@fixture(OLD, refused=dict.fromkeys(("radix_cache", "backend_lists"), "answers would be wrong"))
def the_radix_list_has_ascend_too_early(files: Files) -> None:
    list_ascend(files, RADIX)


@fixture(NEW, OLD)
def a_conditional_expression(files: Files) -> None:
    chosen = '"ascend" if self.sampling_backend == "ascend" else "pytorch"'
    edit(files, SERVER_ARGS, (FORCED + WARNING, FORCED.replace('"pytorch"', chosen) + WARNING))


@fixture(NEW, OLD)
def a_conditional_expression_turned_round(files: Files) -> None:
    chosen = '(\n"pytorch" if self.sampling_backend != "ascend" else self.sampling_backend)'
    edit(files, SERVER_ARGS, (FORCED + WARNING, FORCED.replace('"pytorch"', chosen) + WARNING))


@fixture(NEW, changed={"sampling_backend": "upstream"})
def a_conditional_expression_and_a_guarded_warning(files: Files) -> None:
    chosen = '"ascend" if self.sampling_backend == "ascend" else "pytorch"'
    warning = '            if self.sampling_backend != "ascend":\n' + "".join(
        f"    {line}\n" for line in WARNING.splitlines()
    )
    edit(
        files,
        SERVER_ARGS,
        (FORCED + WARNING, FORCED.replace('"pytorch"', chosen) + warning),
    )


@fixture(NEW, OLD, refused={"sampling_backend": 'a choice between "ascend" and "pytorch"'})
def a_conditional_expression_of_other_values(files: Files) -> None:
    chosen = '"pytorch" if self.sampling_backend == "flashinfer" else "ascend"'
    edit(files, SERVER_ARGS, (FORCED + WARNING, FORCED.replace('"pytorch"', chosen) + WARNING))


@fixture(NEW, OLD, refused={"sampling_backend": "nothing else that sets it"})
def overwritten_again_later(files: Files) -> None:
    within(files, SERVER_ARGS, HANDLER, ("            # Check TP size\n", FORCED))


@fixture(NEW, OLD, refused={"sampling_backend": "2: self.sampling_backend"})
def guarded_and_overwritten_again_later(files: Files) -> None:
    patch_guard(files)
    later = '            setattr(self, "sampling_backend", DEFAULT_SAMPLING_BACKEND)\n'
    within(files, SERVER_ARGS, HANDLER, ("            # Check TP size\n", later))


@fixture(NEW, OLD, refused={"sampling_backend": "a direct child of the if"})
def guarded_under_another_condition(files: Files) -> None:
    guarded = (
        "            if self.tp_size > 1:\n"
        '                if self.sampling_backend != "ascend":\n'
        + "".join(f"        {line}\n" for line in (FORCED + WARNING).splitlines())
    )
    edit(files, SERVER_ARGS, (FORCED + WARNING, guarded))


@fixture(NEW, OLD, changed={"sampling_backend": "upstream"})
def the_guard_alone(files: Files) -> None:
    patch_guard(files)


def patch_guard(files: Files) -> None:
    guarded = '            if self.sampling_backend != "ascend":\n' + "".join(
        f"    {line}\n" for line in (FORCED + WARNING).splitlines()
    )
    edit(files, SERVER_ARGS, (FORCED + WARNING, guarded))


@fixture(NEW, changed={"device_dispatch": "upstream"})
def the_dispatch_key_alone(files: Files) -> None:
    take(files, sources(NATIVE), COMMON, "get_dispatch_device_backend")


@fixture(NEW)
def cuda_written_into_the_registrations(files: Files) -> None:
    text = cut(files, OPS, ENABLE)
    edit(files, OPS, (text, text.replace(KEY, "").replace("dispatch_key", '"CUDA"')))


@fixture(NEW, OLD, OLDER, refused={"batch_invariant": "what this tool or upstream writes"})
def a_branch_for_the_npu_in_literals(files: Files) -> None:
    own = '    if is_npu():\n        _batch_invariant_LIB.impl("aten::mm", own_mm, "NPU")\n'
    within(files, OPS, ENABLE, (LIBRARY, LIBRARY + own + "        return\n"))
    edit(files, OPS, ("\nimport torch\n", "\nimport torch\nfrom sglang.srt.utils import is_npu\n"))


@fixture(NEW, OLD, OLDER, refused={"batch_invariant": "one assignment, directly in the function"})
def a_library_in_each_branch(files: Files) -> None:
    on_npu = (
        "    if is_npu():\n    " + LIBRARY + "        _batch_invariant_LIB.impl("
        '"aten::mm", torch.ops.batch_invariant_ops.npu_mm_batch_invariant, "NPU")\n'
        "        return\n    else:\n    "
    )
    within(files, OPS, ENABLE, (LIBRARY, on_npu + LIBRARY))
    edit(files, OPS, ("\nimport torch\n", "\nimport torch\nfrom sglang.srt.utils import is_npu\n"))


@fixture(NEW, refused={"batch_invariant": "torch.ops.batch_invariant_ops"})
def operators_straight_from_the_extension(files: Files) -> None:
    own = (
        "    if dispatch_key == KEY_OF_ASCEND:\n"
        "        own = torch.ops.batch_invariant_ops\n"
        '        _batch_invariant_LIB.impl("aten::mm", own.npu_mm_batch_invariant, dispatch_key)\n'
        "        return\n"
    )
    within(files, OPS, ENABLE, (LIBRARY, LIBRARY + own))
    edit(files, OPS, ("\nimport torch\n", '\nimport torch\nKEY_OF_ASCEND = "NPU"\n'))


def native_mode(files: Files) -> None:
    """Bring upstream's function with what its module needs for it."""
    given = sources(NATIVE)
    take(files, given, OPS, ENABLE)
    imports = (
        "\nimport torch\nfrom sglang.srt.utils import is_npu\n_is_npu = is_npu()\n"
        "if _is_npu:\n    import torch_npu\n"
    )
    edit(files, OPS, ("\nimport torch\n", imports))
    files[NATIVE_OPS] = given[NATIVE_OPS]


def to_module_level(files: Files, indent: str, under: str) -> None:
    text = cut(files, OPS, ENABLE)
    start = text.index("        from sglang")
    end = text.index("        )\n", start) + len("        )\n")
    lines = text[start:end].splitlines(keepends=True)
    moved = "".join(indent + line[8:] for line in lines)
    edit(files, OPS, (text, text[:start] + text[end:]), (under, under + moved))


IMPORT_TORCH_NPU = "if _is_npu:\n    import torch_npu\n"


def refused_mode(text: str) -> dict[str, str]:
    """Return what is refused where the mode cannot be told to be upstream's."""
    stopped = ("backend_lists", "radix_cache", "batch_invariant", "npu_ops")
    return dict.fromkeys(stopped, text)


@fixture(NEW)
def the_mode_of_upstream_alone(files: Files) -> None:
    native_mode(files)


@fixture(NEW)
def the_operators_imported_at_module_level(files: Files) -> None:
    native_mode(files)
    to_module_level(files, "    ", IMPORT_TORCH_NPU)


@fixture(NEW, refused=refused_mode("one that runs on every device"))
def the_operators_imported_at_module_level_on_every_device(files: Files) -> None:
    native_mode(files)
    to_module_level(files, "", IMPORT_TORCH_NPU)


@fixture(NEW, refused=refused_mode("no such file in the package"))
def the_module_of_upstream_is_missing(files: Files) -> None:
    native_mode(files)
    del files[NATIVE_OPS]


@fixture(NEW, refused=refused_mode("torch_npu in batch_invariant_ops.py"))
def the_import_of_torch_npu_is_pass_in_the_mode(files: Files) -> None:
    native_mode(files)
    edit(files, OPS, (IMPORT_TORCH_NPU, "if _is_npu:\n    pass\n"))


def refused_sampler(text: str) -> dict[str, str]:
    """Return what is refused where the sampler is, on which the sampling backend stands."""
    return dict.fromkeys(("sampler", "sampling_backend"), text)


SAMPLER_IMPORT = "if is_npu():\n    import torch_npu\n"


@fixture(NEW, OLD)
def torch_npu_imported_unconditionally(files: Files) -> None:
    edit(files, SAMPLER, (SAMPLER_IMPORT, "import torch_npu\n"))


@fixture(NEW, OLD, refused=refused_sampler("torch_npu in sampler.py"))
def the_import_of_torch_npu_is_pass(files: Files) -> None:
    edit(files, SAMPLER, (SAMPLER_IMPORT, "if is_npu():\n    pass\n"))


@fixture(NEW, OLD, OLDER)
def a_mode_before_enable_bmm_that_nothing_reads(files: Files) -> None:
    within(files, OPS, ENABLE, ("enable_bmm: bool", 'mode: str = "all", enable_bmm: bool'))


@fixture(NEW, OLD, OLDER, refused={"batch_invariant": "found mode, enable_bmm"})
def a_mode_before_enable_bmm(files: Files) -> None:
    flag = "    if _batch_invariant_MODE:\n        return\n"
    within(
        files,
        OPS,
        ENABLE,
        ("enable_bmm: bool", 'mode: str = "all", enable_bmm: bool'),
        (flag, f"{flag}    print(mode)\n"),
    )


def thread_seeds(files: Files, default: str = "") -> None:
    taken = "    need_min_p_sampling: bool,\n"
    taken_seed = f"    sampling_seed: Optional[torch.Tensor]{default},\n"
    within(files, SAMPLER, FILTERED, (taken, taken + taken_seed))
    handed = "                sampling_info.need_min_p_sampling,\n"
    seed = "                sampling_info.sampling_seed,\n"
    within(files, SAMPLER, "_sample_from_logits", (handed, handed + seed))


@fixture(NEW, OLD)
def seeds_are_threaded_but_positions_are_not(files: Files) -> None:
    thread_seeds(files)


@fixture(
    NEW,
    OLD,
    refused=refused_sampler("positional ones without defaults"),
)
def seeds_are_threaded_with_a_default(files: Files) -> None:
    thread_seeds(files, " = None")


@fixture(
    NEW,
    OLD,
    refused=refused_sampler("the unseeded draw in"),
)
def seeds_are_threaded_and_drawn_from_in_another_way(files: Files) -> None:
    thread_seeds(files)
    draw = "sampled_index = torch.multinomial(probs_sort, num_samples=1)\n"
    own = "sampled_index = own_draw(probs_sort, sampling_seed)\n"
    within(files, SAMPLER, FILTERED, (draw, own))


def thread_positions(files: Files) -> None:
    wide = FORWARD_ASCEND_CALL.replace("return_logprob", "return_logprob, positions")
    within(files, SAMPLER, "forward", (FORWARD_ASCEND_CALL, wide))
    given = "        return_logprob: bool,\n"
    within(
        files,
        SAMPLER,
        "_forward_ascend_backend",
        (given, given + "        positions: torch.Tensor,\n"),
        (
            "logits, sampling_info, simple_sampling_case\n",
            "logits, sampling_info, simple_sampling_case, positions\n",
        ),
    )
    within(
        files,
        SAMPLER,
        "_sample_from_logits",
        (TAKES_SIMPLE, TAKES_SIMPLE + "        positions: torch.Tensor,\n"),
    )


@fixture(NEW, OLD)
def positions_are_threaded_halfway_but_seeds_are_not(files: Files) -> None:
    thread_positions(files)


def filtered_takes(files: Files, *names: str) -> None:
    took, gave = (
        "    need_min_p_sampling: bool,\n",
        ("                sampling_info.need_min_p_sampling,\n"),
    )
    parameters = "".join(f"    {name}: torch.Tensor,\n" for name in names)
    arguments = "".join(
        f"                {'sampling_info.' * (name == 'sampling_seed')}{name},\n" for name in names
    )
    within(files, SAMPLER, FILTERED, (took, took + parameters))
    within(files, SAMPLER, "_sample_from_logits", (gave, gave + arguments))


@fixture(
    NEW,
    OLD,
    refused=refused_sampler("none of sampling_info.sampling_seed, positions but at the end"),
)
def positions_are_threaded_but_seeds_are_not(files: Files) -> None:
    thread_positions(files)
    filtered_takes(files, "positions")


@fixture(
    NEW,
    OLD,
    refused=refused_sampler("none of sampling_info.sampling_seed, positions but at the end"),
)
def positions_before_seeds(files: Files) -> None:
    thread_positions(files)
    filtered_takes(files, "positions", "sampling_seed")


@fixture(
    NEW,
    OLD,
    refused=refused_sampler("none of positions but at the end"),
)
def positions_in_the_middle(files: Files) -> None:
    within(
        files,
        SAMPLER,
        "_sample_from_logits",
        (TAKES_SIMPLE, "        positions: torch.Tensor,\n" + TAKES_SIMPLE),
    )
    within(
        files,
        SAMPLER,
        "_forward_ascend_backend",
        (
            "logits, sampling_info, simple_sampling_case\n",
            "logits, sampling_info, positions, simple_sampling_case\n",
        ),
    )


OURS = dict.fromkeys(SEAMS, "already") | {"attention_comment": "not-needed"}
ADAPTED = {
    **dict.fromkeys(("backend_lists", "sampling_backend", "device_dispatch"), "upstream"),
    "radix_cache": "pending",
}
"""Where upstream's mode stands, forms that are alike are upstream's too."""


@fixture(NEW, changed={**OURS, **ADAPTED})
def ours_and_the_mode_of_upstream_merged(files: Files) -> None:
    patch(files)
    given = sources(NATIVE)
    native = cut(given, OPS, ENABLE).partition(LIBRARY)[2]
    old = cut(files, OPS, ENABLE)
    edit(files, OPS, (old, old.partition(LIBRARY)[0] + LIBRARY + native))
    imports = "\nimport torch\n_is_npu = False\n"
    edit(files, OPS, ("\nimport torch\n", imports))
    files[NATIVE_OPS] = given[NATIVE_OPS]


@fixture(NEW, changed=OURS)
def ours_whose_module_has_come_to_import_is_npu(files: Files) -> None:
    patch(files)
    edit(files, OPS, ("\nimport torch\n", "\nimport torch\nfrom sglang.srt.utils import is_npu\n"))


@fixture(NEW, changed=OURS)
def ours_and_the_guard_of_upstream_merged(files: Files) -> None:
    patch(files)
    text = cut(files, SERVER_ARGS, HANDLER)
    guard = '            if self.sampling_backend != "ascend":\n'
    start = text.index(guard)
    end = text.index("            is_deepseek_model = False", start)
    inner = text[start:end]
    deeper = guard + "".join(f"    {line}\n" for line in inner.splitlines())
    edit(files, SERVER_ARGS, (text, text.replace(inner, deeper)))


@fixture(NEW, changed=OURS)
def ours_and_the_dispatch_key_of_upstream_merged(files: Files) -> None:
    patch(files)
    branch = '    elif is_npu():\n        dispatch_key = "NPU"\n'
    within(files, COMMON, "get_dispatch_device_backend", (branch, branch * 2))


@fixture(NEW, refused={"backend_lists": "at most once"}, changed=OURS)
def ours_and_the_list_of_upstream_merged(files: Files) -> None:
    patch(files)
    list_ascend(files, CHOICES)


@fixture(NEW, refused={"sampler": "each name once"}, changed=OURS)
def ours_and_the_parameter_of_upstream_merged(files: Files) -> None:
    patch(files)
    taken = "        positions: torch.Tensor,\n"
    within(files, SAMPLER, "_sample_from_logits", (taken, taken * 2))


@fixture(NEW, refused={"sampler": "positional arguments only"}, changed=OURS)
def ours_and_the_argument_of_upstream_merged(files: Files) -> None:
    patch(files)
    handed = "                positions,\n"
    within(files, SAMPLER, "_sample_from_logits", (handed, handed * 2))


@fixture(NEW, changed=OURS)
def ours_and_the_draw_of_upstream_merged(files: Files) -> None:
    patch(files)
    draw = "        sampled_index = torch.multinomial(probs_sort, num_samples=1)\n"
    native = (
        "        if sampling_seed is None:\n    " + draw + "        else:\n"
        "            logs = probs_sort.double().log_()\n"
        "            sampled_index = multinomial_with_seed(logs, sampling_seed, positions)\n"
    )
    within(files, SAMPLER, FILTERED, (draw, native))


@fixture(NEW, refused={"batch_invariant": "what this tool inserts here"}, changed=OURS)
def ours_with_its_import_moved_to_module_level(files: Files) -> None:
    patch(files)
    within(
        files,
        OPS,
        ENABLE,
        ("        from sglang.srt.hardware_backend.npu.batch_invariant_ops import npu_ops\n\n", ""),
    )


@fixture(
    NATIVE,
    changed={**ADAPTED, "launch_guards": "already"},
)
def our_guards_carried_on_to_a_native_release(files: Files) -> None:
    older = sources(NEW)
    patch(older)
    edit(files, SERVER_ARGS, (cut(files, SERVER_ARGS, HANDLER), guarded(files, older)))
    files[GUARDS_MODULE] = older[GUARDS_MODULE]


def guarded(files: Files, older: Files) -> str:
    """Give the handler with what ours appends to its branch."""
    text, ours = (cut(each, SERVER_ARGS, HANDLER) for each in (files, older))
    start = ours.rindex("            if is_npu():\n")
    end = ours.index("launch_guards.apply(self)\n", start) + len("launch_guards.apply(self)\n")
    return text.rstrip("\n") + "\n\n" + ours[start:end]


@fixture(OLDER)
def a_branch_for_the_npu_in_literals_that_imports_upstreams_module(files: Files) -> None:
    native = "sglang.srt.hardware_backend.npu.batch_invariant_ops.npu_batch_invariant_ops"
    own = (
        "    if is_npu():\n        import torch_npu\n"
        f"        from {native} import (\n            npu_mm_batch_invariant,\n"
        "            npu_add_rms_norm_batch_invariant,\n"
        "            npu_matmul_batch_invariant,\n        )\n"
        '        _batch_invariant_LIB.impl("aten::mm", npu_mm_batch_invariant, "NPU")\n'
        '        _batch_invariant_LIB.impl("aten::matmul", npu_matmul_batch_invariant, "NPU")\n'
        "        torch_npu.npu_add_rms_norm = npu_add_rms_norm_batch_invariant\n"
        "        return\n"
    )
    within(files, OPS, ENABLE, (LIBRARY, LIBRARY + own))
    edit(files, OPS, ("\nimport torch\n", "\nimport torch\nfrom sglang.srt.utils import is_npu\n"))
    files[NATIVE_OPS] = sources(NATIVE)[NATIVE_OPS]
