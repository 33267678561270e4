"""Check what the handler of deterministic inference does: four seams meet in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.npu_ops.launch_guards import ENVIRONMENT
from sgl_npu_patch.simulator import device, extension, torch_npu
from sgl_npu_patch.simulator.sglang import VENDORED, Device, Execution
from sgl_npu_patch.verify.behaviour import Failed, Subject, check
from sgl_npu_patch.verify.behaviour.arguments import (
    CHOICES,
    DEEPSEEK,
    RADIX,
    Outcome,
    graph_config,
    listed,
    new_execution,
    run,
    shared_execution,
)
from sgl_npu_patch.verify.findings import NotApplicable

NOT_REPLACED = "npu_fused_infer_attention_score_v2"
SWITCHES = {"disable_cuda_graph": True, "enable_torch_compile": False}
"""What captures or compiles, with the value that is safe."""

OTHER_DEVICES: tuple[Device, ...] = ("cuda", "hip", "xpu", "cpu")
_MISSING = "launch_guards_missing"


@check("backend_lists")
def ascend_attention_is_accepted(subject: Subject) -> None:
    """Deterministic inference accepts the attention backend ascend."""
    result = run(_npu(subject))
    _expect("the error", result.error, None)
    _expect("attention_backend", result["attention_backend"], "ascend")


@check("backend_lists")
def ascend_is_listed_once(subject: Subject) -> None:
    """The list of attention backends names ascend once."""
    choices = listed(_npu(subject), CHOICES)
    if choices is None:
        raise Failed(f"{CHOICES} is no list", code=CHOICES.name)
    _expect(f'{CHOICES}.count("ascend")', choices.count("ascend"), 1)


@check("backend_lists")
def unknown_backends_are_refused(subject: Subject) -> None:
    """An attention backend that is not listed is refused."""
    for backend in ("no_such_backend", "ASCEND", ""):
        if run(_npu(subject), attention_backend=backend).error is None:
            raise Failed(
                f"the attention backend {backend!r} is accepted",
                expected="a ValueError",
                found="no error",
                code=_call(attention_backend=backend),
            )


@check("backend_lists")
def other_backends_are_judged_as_before(subject: Subject) -> None:
    """Every other attention backend is accepted or refused as in the unpatched tree."""
    _compare(subject, "backend_lists", (*OTHER_DEVICES, "npu"))
    base, patched = (listed(shared_execution(p, "npu"), CHOICES) for p in _packages(subject))
    without = [backend for backend in patched or () if backend != "ascend"]
    _expect(CHOICES.name, without, [backend for backend in base or () if backend != "ascend"])


@check("radix_cache")
def off_where_prefill_ignores_it(subject: Subject) -> None:
    """The radix cache is off on ascend where prefill ignores a cached prefix."""
    if _keeps_radix_cache(subject):
        raise NotApplicable("prefill reads the paged cache on this tree")
    for tp_size in (1, 2):
        result = _past_the_list(_npu(subject), tp_size=tp_size)
        _expect("disable_radix_cache", result["disable_radix_cache"], True, tp_size=tp_size)
        _expect("warnings of it", len(result.said("radix cache")), 1, tp_size=tp_size)


@check("radix_cache")
def on_where_prefill_reads_it(subject: Subject) -> None:
    """The radix cache stays on for ascend where prefill reads it."""
    if not _keeps_radix_cache(subject):
        raise NotApplicable("prefill ignores a cached prefix on this tree")
    for tp_size in (1, 2):
        result = _past_the_list(_npu(subject), tp_size=tp_size)
        _expect("disable_radix_cache", result["disable_radix_cache"], False, tp_size=tp_size)
        _expect("warnings of it", len(result.said("radix cache")), 0, tp_size=tp_size)


@check("radix_cache")
def the_users_choice_stays(subject: Subject) -> None:
    """A radix cache that the user switched off stays off."""
    result = _past_the_list(_npu(subject), disable_radix_cache=True)
    _expect("disable_radix_cache", result["disable_radix_cache"], True, disable_radix_cache=True)


@check("radix_cache")
def other_backends_keep_their_gate(subject: Subject) -> None:
    """For every other attention backend the radix cache is on or off as in the unpatched tree."""
    _compare(subject, "radix_cache", (*OTHER_DEVICES, "npu"))


@check("radix_cache")
def deepseek_is_refused_as_before(subject: Subject) -> None:
    """A DeepSeek model is refused on ascend as the unpatched tree refuses it on flashinfer."""
    if _has_upstreams(subject):
        raise NotApplicable("the unpatched tree accepts ascend itself")
    for on in ("cuda", "npu"):
        base, patched = _pair(subject, on)
        _past_the_list(patched)
        before = run(base, attention_backend="flashinfer", architecture=DEEPSEEK).comparable()
        after = run(patched, attention_backend="ascend", architecture=DEEPSEEK).comparable()
        refusal = None if before.error is None else before.error.replace("flashinfer", "ascend")
        _expect("the error", after.error, refusal, architecture=DEEPSEEK)


@check("radix_cache", gap="deepseek_refused")
def deepseek_is_accepted(subject: Subject) -> None:
    """A DeepSeek model is accepted on ascend where the tree claims that ascend is ready for it."""
    if not _has_upstreams(subject):
        raise NotApplicable("the patch leaves the refusal of DeepSeek models as it is")
    if "ascend" not in (listed(_npu(subject), RADIX) or ()):
        raise NotApplicable(f"the tree does not list ascend in {RADIX}")
    _past_the_list(_npu(subject))
    result = run(_npu(subject), architecture=DEEPSEEK)
    _expect("the error", result.error, None, architecture=DEEPSEEK)


@check("sampling_backend")
def ascend_is_kept(subject: Subject) -> None:
    """The sampling backend ascend is kept, without a warning."""
    if "sampling_backend" in subject.left_out:
        raise NotApplicable(f"the seam is {subject.left_out['sampling_backend']} on this tree")
    _expect_sampling(_past_the_list(_npu(subject)), "ascend", 0, "ascend")


@check("sampling_backend")
def ascend_becomes_pytorch_where_it_cannot_draw(subject: Subject) -> None:
    """The sampling backend ascend becomes pytorch, with one warning, where it cannot be kept."""
    if "sampling_backend" not in subject.left_out:
        raise NotApplicable("ascend samples by seed on this tree")
    _expect_sampling(_past_the_list(_npu(subject)), "pytorch", 1, "ascend")


@check("sampling_backend")
def others_become_pytorch(subject: Subject) -> None:
    """Every other sampling backend becomes pytorch, with one warning."""
    for backend in ("flashinfer", "pytorch", "other", None):
        result = _past_the_list(_npu(subject), sampling_backend=backend)
        _expect_sampling(result, "pytorch", 1, backend)


@check("sampling_backend")
def others_are_set_as_before(subject: Subject) -> None:
    """Other sampling backends end as in the unpatched tree, on every device."""
    _compare(subject, "sampling_backend", (*OTHER_DEVICES, "npu"))


@check("launch_guards", gap=_MISSING)
def capture_and_compilation_are_off(subject: Subject) -> None:
    """Graph capture and torch.compile are switched off on an NPU, with one warning each."""
    old = ModuleType("torch_npu")
    old.__dict__["npu"] = SimpleNamespace()
    for provided in (None, old):
        for name, value in SWITCHES.items():
            chosen = {name: not value}
            # A warning is said once a process, so each run gets an execution of its own.
            execution = new_execution(subject.package, "npu", {"torch_npu": provided})
            result = _past_the_list(execution, **chosen)
            for switch, safe in SWITCHES.items():
                _expect(switch, result[switch], safe, **chosen)
            _expect(f"warnings that name {name}", len(result.said(name)), 1, **chosen)
    config = graph_config(_npu(subject))
    if config is not None:
        # The flags are folded into it before the handler runs, and not read any more.
        after = _past_the_list(_npu(subject), cuda_graph_config=config)["cuda_graph_config"]
        for phase in vars(config):
            _expect(f"cuda_graph_config.{phase}.backend", vars(after)[phase].backend, "disabled")


@check("launch_guards")
def graphs_stay_where_they_can_be_renewed(subject: Subject) -> None:
    """Graph capture stays on where torch_npu can renew the replaced attention's lengths."""
    if _carries_ours(subject) and _npu(subject).file(f"{VENDORED}.npu_ops") is None:
        raise NotApplicable("the tree has no npu_ops, whose graph handler renews them")
    device.install()
    fake = torch_npu.install(subject.torch_npu)
    try:
        if not hasattr(fake.npu, "register_npu_graph_handler"):
            raise NotApplicable(f"torch_npu {subject.torch_npu} has no graph handlers")
        operators = extension.install("2.0.0", subject.torch_npu)
        provided = {"torch_npu": fake, "batch_invariant_ops": operators}
        execution = new_execution(subject.package, "npu", provided)
        config = graph_config(execution)
        given = {} if config is None else {"cuda_graph_config": config}
        result = _past_the_list(execution, enable_torch_compile=True, **given)
        _expect("disable_cuda_graph", result["disable_cuda_graph"], False)
        if config is not None:
            _expect("cuda_graph_config", result["cuda_graph_config"], config)
    finally:
        extension.uninstall()
        torch_npu.uninstall()


@check("launch_guards", gap=_MISSING)
def the_environment_is_set(subject: Subject) -> None:
    """What a variable has to be is set before worker processes start, and said if it was else."""
    unset = _past_the_list(_npu(subject)).environment
    given = {name: _weaker(name) for name in ENVIRONMENT}
    replaced = _past_the_list(new_execution(subject.package, "npu"), given)
    for name, variable in ENVIRONMENT.items():
        wanted = variable.wanted or ""
        _expect(f"os.environ[{name!r}]", unset.get(name, ""), "" if variable.suits("") else wanted)
        found = replaced.environment.get(name, given[name])
        _expect(f"os.environ[{name!r}]", found, wanted, **{name: given[name]})
        said = replaced.said(f"{name.lower()}=", f"{name.lower()},")
        _expect(f"warnings of {name}", len(said), 1, **{name: given[name]})


@check("launch_guards")
def what_suits_in_the_environment_is_kept(subject: Subject) -> None:
    """A variable that the user set as it has to be is left alone, without a word."""
    for name, variable in ENVIRONMENT.items():
        for value in filter(None, variable.accepts):
            result = _past_the_list(_npu(subject), {name: value})
            _expect(f"os.environ[{name!r}]", result.environment.get(name, value), value)
            _expect(f"warnings of {name}", result.said(name.lower()), [])


@check("launch_guards", gap=_MISSING)
def no_prompt_is_cut(subject: Subject) -> None:
    """Where prefill attends to the new tokens only, every prompt is prefilled at once."""
    if _keeps_radix_cache(subject):
        raise NotApplicable("prefill reads what is cached of a prompt")
    execution = new_execution(subject.package, "npu")
    result = _past_the_list(execution, chunked_prefill_size=4096, enable_mixed_chunk=True)
    _expect("chunked_prefill_size", result["chunked_prefill_size"], -1)
    _expect("enable_mixed_chunk", result["enable_mixed_chunk"], False)


@check("launch_guards")
def what_is_off_already_is_not_mentioned(subject: Subject) -> None:
    """Nothing is said about graph capture and compilation where both are off."""
    result = _past_the_list(new_execution(subject.package, "npu"), **SWITCHES)
    _expect("warnings of switches", result.said(*SWITCHES), [], **SWITCHES)


@check("launch_guards", gap=_MISSING)
def what_nothing_replaces_is_said(subject: Subject) -> None:
    """Where the ascend attention calls an operator that nothing replaces, that is said, once."""
    folder = subject.package.joinpath(*VENDORED.split(".")[1:-1], "attention")
    if not any(NOT_REPLACED in path.read_text("utf-8") for path in folder.rglob("*.py")):
        raise NotApplicable(f"the ascend attention of the tree does not call {NOT_REPLACED}")
    execution = new_execution(subject.package, "npu")
    other = _past_the_list(execution, attention_backend="triton")
    _expect("warnings of it", other.said(NOT_REPLACED), [], attention_backend="triton")
    said = [text for _ in range(2) for text in _past_the_list(execution).said(NOT_REPLACED)]
    _expect("warnings of it", len(said), 1)


@check("launch_guards")
def a_second_run_finds_the_same(subject: Subject) -> None:
    """A second run of the handler ends as the first: SGLang may resolve its arguments twice."""
    execution = new_execution(subject.package, "npu")
    first, second = _past_the_list(execution), _past_the_list(execution)
    _expect_equal(second.attributes, first.attributes)
    _expect_equal(second.environment, first.environment)


@check("launch_guards")
def nothing_happens_without_deterministic_inference(subject: Subject) -> None:
    """Without deterministic inference nothing is set, switched or said."""
    for on in ("npu", "cuda"):
        for chosen in _grid_without_determinism():
            result = run(shared_execution(subject.package, on), **chosen)
            _expect_equal({name: result[name] for name in chosen if name in chosen}, chosen)
            _expect("disable_cuda_graph", result["disable_cuda_graph"], False, **chosen)
            _expect("what is set in os.environ", result.environment, {}, **chosen)
            _expect("the warnings", result.warnings, [], **chosen)


@check("launch_guards")
def nothing_happens_off_the_npu(subject: Subject) -> None:
    """On every other device nothing of the launch guards is set."""
    for on in OTHER_DEVICES:
        result = run(
            shared_execution(subject.package, on),
            attention_backend="triton",
            enable_torch_compile=True,
        )
        _expect(f"disable_cuda_graph on {on}", result["disable_cuda_graph"], False)
        _expect(f"enable_torch_compile on {on}", result["enable_torch_compile"], True)
        found = sorted(result.environment.keys() & ENVIRONMENT.keys())
        _expect(f"what is set in os.environ on {on}", found, [])


@check("launch_guards")
def everything_else_ends_as_before(subject: Subject) -> None:
    """All other arguments, variables and warnings are those of the unpatched tree."""
    _compare(subject, "launch_guards", (*OTHER_DEVICES, "npu"))


def _npu(subject: Subject) -> Execution:
    return shared_execution(subject.package, "npu")


def _past_the_list(
    execution: Execution, environment: Mapping[str, str] | None = None, /, **chosen: Any
) -> Outcome:
    """Run the handler; a tree that refuses ascend says nothing about what comes behind that."""
    result = run(execution, environment, **chosen)
    if result.error is not None:
        raise NotApplicable(f"the tree refuses: {result.error}")
    return result


def _packages(subject: Subject) -> tuple[Path, Path]:
    if subject.base is None:
        raise NotApplicable("needs --base, the unpatched tree to compare with")
    return subject.base, subject.package


def _pair(subject: Subject, on: Device) -> tuple[Execution, Execution]:
    base, patched = (shared_execution(package, on) for package in _packages(subject))
    return base, patched


def _carries_ours(subject: Subject) -> bool:
    """Tell by the vendored module whether an entry that upstream writes too may be the patch's."""
    return _npu(subject).file(f"{VENDORED}.launch_guards") is not None


def _has_upstreams(subject: Subject) -> bool:
    """Tell whether the tree has upstream's adaptation, with or without what closes its gaps."""
    return _npu(subject).file(f"{VENDORED}.{symbols.UPSTREAM_OPS}") is not None


def _keeps_radix_cache(subject: Subject) -> bool:
    """Tell by the list that lets a backend keep it; a tree without one gets a gate for ascend."""
    return "radix_cache" not in subject.left_out and listed(_npu(subject), RADIX) is not None


def _compare(subject: Subject, seam: str, devices: tuple[Device, ...]) -> None:
    """Run both trees on every combination of the grid, and compare what one seam is about."""
    for on in devices:
        base, patched = _packages(subject)
        runs = zip(_runs(base, on), _runs(patched, on), strict=True)
        for (chosen, before), (_, after) in runs:
            if seam != "backend_lists" and after.error != before.error:
                # How far the handler comes is decided by the list alone.
                continue
            for name, (old, new) in _facets(seam, on, before, after).items():
                if new != old:
                    raise Failed(
                        f"{name} differs from the unpatched tree's on {on}",
                        expected=repr(old),
                        found=repr(new),
                        code=_call(**chosen),
                    )


@cache
def _runs(package: Path, on: Device) -> list[tuple[dict[str, Any], Outcome]]:
    execution = shared_execution(package, on)
    return [(chosen, run(execution, **chosen).comparable()) for chosen in _grid()]


def _facets(
    seam: str, on: Device, before: Outcome, after: Outcome
) -> dict[str, tuple[object, object]]:
    """Pair what each tree does in the matters of one seam."""
    if seam == "backend_lists":
        names: tuple[str, ...] = ("attention_backend",)
        given: dict[str, tuple[object, object]] = {"the error": (before.error, after.error)}
    elif seam == "radix_cache":
        names, given = ("disable_radix_cache",), _said(before, after, "radix cache")
    elif seam == "sampling_backend":
        names, given = ("sampling_backend",), _said(before, after, "sampling backend")
    else:
        others = ("attention_backend", "disable_radix_cache", "sampling_backend")
        names = tuple(
            name
            for name in before.attributes.keys() | after.attributes.keys()
            if name not in others and not (on == "npu" and _is_switch(name))
        )
        old, new = (_others(each, on) for each in (before, after))
        given = {"the warnings": (old[0], new[0]), "os.environ": (old[1], new[1])}
    return {
        **{name: (before.attributes.get(name), after.attributes.get(name)) for name in names},
        **given,
    }


def _said(before: Outcome, after: Outcome, word: str) -> dict[str, tuple[object, object]]:
    return {f"what is said of the {word}": (before.said(word), after.said(word))}


def _others(outcome: Outcome, on: Device) -> tuple[list[str], dict[str, str]]:
    """Return the warnings and variables that are not those of a seam on that device."""
    owned = {*outcome.said("radix cache", "sampling backend")}
    guards: tuple[str, ...] = ()
    if on == "npu":
        guards = tuple(ENVIRONMENT)
        names = (*SWITCHES, "cuda_graph_config", "piecewise", "chunked", *ENVIRONMENT, NOT_REPLACED)
        owned |= {*outcome.said(*(name.lower() for name in names))}
    said = [text for text in outcome.warnings if text not in owned]
    return said, {name: v for name, v in outcome.environment.items() if name not in guards}


def _is_switch(name: str) -> bool:
    return any(part in name for part in ("cuda_graph", "torch_compile", "chunk"))


def _grid() -> Iterator[dict[str, Any]]:
    """Combine what the handler decides by, without the one backend that the patch is about."""
    backends = (None, "fa3", "triton", "flashinfer", "torch_native")
    for attention, tp_size, architecture in product(
        backends, (1, 2), ("Qwen3ForCausalLM", DEEPSEEK)
    ):
        for sampling in ("flashinfer", "pytorch", None) if tp_size == 1 else ("flashinfer",):
            yield {
                "attention_backend": attention,
                "sampling_backend": sampling,
                "tp_size": tp_size,
                "architecture": architecture,
            }
    yield from _grid_without_determinism()
    yield {
        "rl_on_policy_target": "fsdp",
        "enable_deterministic_inference": False,
        "attention_backend": "fa3",
        "sampling_backend": "flashinfer",
    }


def _grid_without_determinism() -> Iterator[dict[str, Any]]:
    for attention, sampling in product(("ascend", "fa3"), ("ascend", "flashinfer")):
        yield {
            "enable_deterministic_inference": False,
            "attention_backend": attention,
            "sampling_backend": sampling,
            "enable_torch_compile": True,
        }


def _expect_sampling(result: Outcome, backend: str, warnings: int, given: str | None) -> None:
    _expect("sampling_backend", result["sampling_backend"], backend, sampling_backend=given)
    said = len(result.said("sampling backend"))
    _expect("warnings of it", said, warnings, sampling_backend=given)


def _expect(what: str, found: object, wanted: object, **chosen: object) -> None:
    if found != wanted:
        raise Failed(
            f"{what} is {found!r}, not {wanted!r}",
            expected=repr(wanted),
            found=repr(found),
            code=_call(**chosen),
        )


def _expect_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        _expect(name, found.get(name), wanted.get(name))


def _call(**chosen: object) -> str:
    """Show how the handler is come to with these arguments."""
    named = {"attention_backend": "ascend", "enable_deterministic_inference": True, **chosen}
    arguments = ", ".join(f"{name}={value!r}" for name, value in named.items())
    return f"ServerArgs({arguments})._handle_deterministic_inference()"


def _weaker(name: str) -> str:
    """Return a value that breaks the promise, or may."""
    wanted = ENVIRONMENT[name].wanted
    return "AIV" if wanted is None else "1" if wanted == "0" else "0"
