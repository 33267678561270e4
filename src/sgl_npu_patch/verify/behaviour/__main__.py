"""Run groups of checks on a tree; read one JSON request on stdin, write one JSON line an event.

Never run by hand: `isolation` starts it with a throw-away home and reads the lines. A line names
a check that begins (``{"begins": ID, "seam", "meaning", "gap"}``) or gives its verdict.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import IO, Any

from sgl_npu_patch.verify.behaviour import Check, Failed, NotApplicable, Subject, declared
from sgl_npu_patch.verify.behaviour.guard import forbid_writing


def main() -> None:
    """Run what the request asks for."""
    request = json.load(sys.stdin)
    # Whatever the tree prints must not be taken for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    subject = Subject(
        package=Path(request["package"]),
        base=Path(request["base"]) if request["base"] else None,
        left_out=request["left_out"],
        native=request["native"],
        torch_npu=request["torch_npu"],
    )
    groups = [(group, declared(group)) for group in request["groups"]]
    forbid_writing(outside=Path(request["scratch"]))
    for _, checks in groups:
        for each in checks:
            if not request["only"] or each.id in request["only"]:
                _answer(answers, each, subject)


def _answer(answers: IO[str], each: Check, subject: Subject) -> None:
    about = {"begins": each.id, "seam": each.seam, "meaning": each.meaning, "gap": each.gap}
    print(json.dumps(about), file=answers, flush=True)
    print(json.dumps(_verdict(each, subject)), file=answers, flush=True)


def _verdict(each: Check, subject: Subject) -> dict[str, Any]:
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
    except Exception as error:  # noqa: BLE001  # whatever the tree's code raises is a finding
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
