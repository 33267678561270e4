"""Be the program that the kit is: tell the facts, compare bits, write the receipt."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

from . import facts

RECEIPT = 1
"""The version of the receipt's form."""

SERVER = (
    "ASCEND_USE_FIA=1 SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT=1 HCCL_DETERMINISTIC=strict "
    "LCCL_DETERMINISTIC=1 python -m sglang.launch_server --model-path MODEL --device npu "
    "--attention-backend ascend --sampling-backend ascend --enable-deterministic-inference "
    "--disable-cuda-graph"
)
TESTS = tuple(
    f"python -m sglang.test.test_deterministic {options}"
    for options in (
        "--test-mode single --n-trials 50 --temperature 1.0 --sampling-seed 42",
        "--test-mode prefix --n-start 1 --n-trials 50 --temperature 1.0",
        "--test-mode radix_cache",
    )
)
"""SGLang's own determinism test; every release from 0.5.4 on has the three modes."""

LIMIT = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}
"""How far the mode's result may be from the native one: ten times the type's precision."""

HOLDS, BROKEN, NOTHING = "ok", "WRONG", "none"
"""What a comparison says: that it holds, that it does not, nothing."""

Load = Callable[[str], ModuleType]


def main(load: Load, version: str, digest: str, arguments: list[str] | None = None) -> int:
    """Run the kit; give 0 where everything is as it must be, else 1, or 4 where it cannot be told.

    Args:
        load: executes one of the modules that this file carries.
        version: of sgl-npu-patch, which wrote the kit.
        digest: of the module npu_ops that the kit carries.
    """
    parser = argparse.ArgumentParser(
        description="Measure on this machine that SGLang's batch-invariant mode on an NPU holds."
    )
    parser.add_argument("-o", "--receipt", metavar="FILE", default="receipt.json")
    parser.add_argument("--sizes", metavar="N", type=int, nargs="+", help="sizes of the batches")
    parser.add_argument("--width", metavar="N", type=int, help="width of a row, a multiple of 8")
    options = parser.parse_args(arguments)
    path = Path(options.receipt)
    # Said before the hours that a slow machine may take, rather than after them.
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"{path} cannot be written")
    try:
        return _measure(load, version, digest, options)
    except KeyboardInterrupt:
        _say("\ninterrupted; there is no receipt")
        return 130


def _measure(load: Load, version: str, digest: str, options: argparse.Namespace) -> int:
    mode = _ours(load)
    _say("facts")
    seen = facts.collect(mode, load("launch_guards").ENVIRONMENT)
    for fact in seen.facts:
        _say(f"  {fact.verdict:<7} {fact.id}: {fact.found}")
        if fact.action:
            _say(f"{'':10}{fact.action}")
    claims = []
    if seen.chip:
        _say("\nthe same row alone and in batches, by its bits")
        asked = {name: given for name in ("sizes", "width") if (given := getattr(options, name))}
        claims = load("bits").compare(mode, tell=_say_claim, **asked)
    else:
        _say("\nno device: nothing is compared")
    receipt = {
        "receipt": RECEIPT,
        "tool": {"name": "sgl-npu-patch", "version": version},
        "date": datetime.now(timezone.utc).date().isoformat(),
        "chip": seen.chip,
        "versions": seen.versions,
        "npu_ops": digest,
        "facts": [asdict(fact) for fact in seen.facts],
        "claims": claims,
    }
    Path(options.receipt).write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    broken = sum(verdict(claim) == BROKEN for claim in claims)
    wrong = sum(fact.verdict == facts.WRONG for fact in seen.facts)
    _say(f"\n{len(claims)} comparisons, {broken} that fail; {wrong} facts that are wrong")
    _say("the receipt is written; see it with: sgl-npu-patch verify PATH --receipt FILE")
    _say("\nSGLang's own determinism test, with the patched SGLang. The server:\n")
    _say(f"  {SERVER}\n\nand beside it, each of which must report one unique output a prompt:\n")
    _say("\n".join(f"  {command}" for command in TESTS))
    if broken or wrong:
        return 1
    return 0 if claims else 4


def verdict(claim: dict[str, Any]) -> str:
    """Judge one comparison: with the mode on, a row must have the same bits in every batch.

    What fails in either mode is nothing that the device can do, and says nothing.
    """
    if claim["on"].get("equal"):
        return HOLDS
    return NOTHING if "error" in claim["on"] and "error" in claim["off"] else BROKEN


def said(measured: dict[str, Any]) -> str:
    """Tell in words what one mode of a comparison gave."""
    if "error" in measured:
        return str(measured["error"])
    first = measured["first"]
    if first is None:
        return "equal"
    place = f"row {first['place']} of {first['size']}"
    if "element" not in first:
        return f"another shape or type as {place}"
    return (
        f"differs as {place}, in {first['elements']} of {first['of']} elements: "
        f"{first['in_batch']}, alone {first['alone']}"
    )


def tell_facts(load: Load, request: dict[str, Any]) -> None:
    """Print the facts as one JSON document; nothing else can reach stdout.

    Args:
        request: ``guarded``, and ``mode``, by which a tree's own is entered and left, or None.
    """
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    given = request["mode"]
    mode = _ours(load) if given is None else _of_tree(**given)
    environment = load("launch_guards").ENVIRONMENT
    seen = facts.collect(mode, environment, guarded=request["guarded"])
    json.dump(asdict(seen), answer)
    answer.close()
    # Libraries of a device may hang or fail where Python ends, and all is said.
    os._exit(0)


def _ours(load: Load) -> facts.Mode:
    """Give the mode of the npu_ops that the kit carries."""

    @contextmanager
    def mode() -> Iterator[None]:
        module: Any = load("npu_ops")
        library = module.enable()
        try:
            yield
        finally:
            module.disable()
            library._destroy()

    return mode


def _of_tree(folder: str, enter: str, leave: str) -> facts.Mode:
    """Return the mode of a tree, whose code is executed for it."""

    @contextmanager
    def mode() -> Iterator[None]:
        sys.path.insert(0, folder)
        from importlib import import_module

        def function(name: str) -> Any:
            module, _, attribute = name.partition(":")
            return getattr(import_module(module), attribute)

        function(enter)()
        try:
            yield
        finally:
            function(leave)()

    return mode


def _say_claim(claim: dict[str, Any]) -> None:
    _say(f"  {verdict(claim):<5} {claim['operator']}, {claim['form']}, {claim['dtype']}")
    _say(f"        mode on: {said(claim['on'])}\n        mode off: {said(claim['off'])}")
    deviation = claim["deviation"]
    if deviation is not None and deviation > LIMIT[claim["dtype"]]:
        _say(f"        the mode's result is {deviation:.1e} away from the original one")


def _say(text: str) -> None:
    """Print at once; that nobody reads it any more is no reason to stop measuring."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
