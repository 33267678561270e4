"""Run groups of checks on a tree, as `protocol` describes.

Never run by hand: `isolation` starts it with a throw-away home.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

from sgl_npu_patch.verify import protocol
from sgl_npu_patch.verify.behaviour import Check, Failed, Subject, declared
from sgl_npu_patch.verify.behaviour.guard import forbid_writing
from sgl_npu_patch.verify.findings import NotApplicable


def main() -> None:
    """Run what the request asks for."""
    request, answer = protocol.begin()
    # Loads torch, which takes long on a busy machine: the time runs already.
    from sgl_npu_patch.simulator.sglang import Execution

    subject = Subject(
        package=Path(request["package"]),
        base=Path(request["base"]) if request["base"] else None,
        left_out=request["left_out"],
        native=request["native"],
        torch_npu=request["torch_npu"],
    )

    Execution.also_real.update(request.get("real", ()))

    checks = [
        each
        for group in request["groups"]
        for each in declared(group)
        if not request["only"] or {each.id, each.seam} & set(request["only"])
    ]
    keys = ("id", "seam", "meaning", "gap")
    answer({"declared": [{key: getattr(each, key) for key in keys} for each in checks]})
    forbid_writing(outside=Path(request["scratch"]))
    for each in checks:
        os.chdir(request["scratch"])
        answer({"begins": each.id})
        answer(verdict(each, subject))
    # Neither threads nor exit handlers of the tree may outlast the checks.
    os._exit(0)


def verdict(each: Check, subject: Subject) -> dict[str, Any]:
    """Run one check and return what to report of it.

    ``modules`` are the tree's modules that the check lacked, where that is why it was not run.
    """
    try:
        said = each.run(subject)
    except NotApplicable as reason:
        return {"verdict": "not-applicable", "message": str(reason)}
    except Failed as failure:
        return {
            "verdict": "fail",
            "message": str(failure),
            "expected": failure.expected,
            "found": failure.found,
            "code": failure.code or _where(failure),
        }
    except BaseException as error:  # noqa: BLE001  # whatever the tree's code raises is a finding
        from sgl_npu_patch.verify.behaviour.harness import limit_of

        limit = limit_of(error, subject.package)
        if limit is not None:
            told = f"not run: {limit.reason}"
            return {
                "verdict": "not-applicable", "message": told, "modules": sorted(limit.modules)
            }  # fmt: skip
        message = str(error) or type(error).__name__
        if not isinstance(error, AssertionError):
            message = f"{type(error).__name__}: {message}"
        return {"verdict": "fail", "message": message[:2000], "code": _where(error)}
    return {"verdict": "pass", "message": f"{each.meaning} {said or ''}".strip()}


def _where(error: BaseException) -> str:
    """Show the statement of the check and the deepest line of the tree that it came to."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}behaviour{os.sep}" in f.filename]
    deepest = [f for f in frames if f"{os.sep}sglang{os.sep}srt{os.sep}" in f.filename]
    lines = [*(f.line or "" for f in own[-1:])]
    lines += [
        f"{f.filename.partition(f'{os.sep}sglang{os.sep}')[2]}:{f.lineno} in {f.name}: {f.line}"
        for f in deepest[-1:]
    ]
    return "\n".join(line for line in lines if line)


if __name__ == "__main__":
    main()
