"""Start the process that runs a tree's server, and read what it finds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.trees.directory import SourceTree
from sgl_npu_patch.engine.trees.open import as_folder
from sgl_npu_patch.simulator.environment import ADVERSARIAL, environment
from sgl_npu_patch.verify import isolation
from sgl_npu_patch.verify.server.models import DEFAULT, Model

GROUP: Final = "server"
STARTS: Final = "server.starts"
STARTS_MEANING: Final = "The tree's scheduler starts on the simulated NPU, with a tiny model."
SECONDS: Final = 1200
"""How long the process may take on a busy machine; it needs one or two minutes of a free one."""

_NEEDED = ("transformers", "zmq", "fastapi", "xgrammar", "triton")
"""Some of what the extra installs, by which its lack is noticed."""

LAUNCH: Mapping[str, str] = {
    "ASCEND_USE_FIA": "1",
    "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT": "1",
    "HCCL_DETERMINISTIC": "strict",
    "LCCL_DETERMINISTIC": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
"""How a deterministic server is launched, see docs/launch.md, and nothing is downloaded."""


def require_extra() -> None:
    """Raise `Refused` if what a server needs is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Refused(
            f"{', '.join(missing)} not installed, which the tree's server needs: install "
            "sgl-npu-patch[server]"
        )


@dataclass(frozen=True, slots=True)
class Server:
    """How the server is run.

    Attributes:
        model: what `models.make` makes.
        adversarial: what follows more than the batch, `environment.OF_ATTENTION` or nothing.
    """

    model: Model = DEFAULT
    adversarial: str = ""


def check(tree: SourceTree, only: Sequence[str] = (), server: Server = Server()) -> list[Result]:
    """Run the scenarios on a tree's server.

    Args:
        only: ids of scenarios to run, all if empty.
    """
    if only and not any(name.startswith(f"{GROUP}.") for name in only):
        return []
    with as_folder(tree) as root:
        given = {**os.environ, **({ADVERSARIAL: server.adversarial} if server.adversarial else {})}
        variables = environment([(root / tree.package).parent], given)
        found = isolation.run(
            [GROUP],
            {"only": list(only), "model": server.model},
            seconds=SECONDS,
            program="sgl_npu_patch.verify.server",
            variables={**variables, **LAUNCH},
        )
    started = any(result.id == STARTS and result.verdict == "pass" for result in found)
    # A process that ends before the server runs says nothing about the tree.
    return found if started else [_not_applicable(result) for result in found]


def _not_applicable(result: Result) -> Result:
    if result.verdict == "not-applicable":
        return result
    told = f"the server does not start here: {result.message}"
    return replace(result, verdict="not-applicable", message=told, lost=False)
