"""Write the kit: one Python file that needs nothing of this package."""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.errors import Refused

_VENDORED = ("npu_ops", "launch_guards")
_MODULES = ("facts", "bits", "program")

_HEAD = '''\
"""Measure on a machine with an Ascend NPU what sgl-npu-patch {version} can only simulate.

    python FILE                 # facts, comparisons bit by bit, and a receipt in receipt.json
    python FILE --help          # where to write it, and the sizes of what is compared

Needs Python 3.10, torch, torch_npu and Ascend's batch_invariant_ops; nothing else, and no network.
The receipt holds versions, the chip's name and results; no name of a host, a folder or a user.
Below stands the source of its modules, as sgl-npu-patch has it. Written by `sgl-npu-patch kit`.
"""

import hashlib
import os
import sys
from types import ModuleType

VERSION = "{version}"
SOURCES = {{}}
'''

_TAIL = '''
PACKAGE = "sgl_npu_patch_kit"


def load(name):
    """Execute one of the modules, once."""
    full = f"{PACKAGE}.{name}"
    if full not in sys.modules:
        module = sys.modules[full] = ModuleType(full)
        module.__package__ = PACKAGE
        try:
            exec(compile(SOURCES[name], f"{name}.py", "exec"), vars(module))
        except BaseException:
            del sys.modules[full]
            raise
    return sys.modules[full]


# A folder named batch_invariant_ops beside this file, such as its source, is not what is installed.
if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
    del sys.path[0]
package = sys.modules[PACKAGE] = ModuleType(PACKAGE)
package.__path__ = []
package.facts = load("facts")
'''

_MAIN = """
if __name__ == "__main__":
    npu_ops = hashlib.sha256(SOURCES["npu_ops"].encode()).hexdigest()
    sys.exit(load("program").main(load, VERSION, npu_ops))
"""

_DOCTOR = """
import json

load("program").tell_facts(load, json.load(sys.stdin))
"""


def render_kit() -> str:
    """Give the kit's text, the same whenever and wherever it is made."""
    return _joined() + _MAIN


def write_kit(path: Path) -> None:
    """Write the kit, whole or not at all, over an older one but over nothing else.

    Raises:
        Refused: there is another file, or it cannot be written.
    """
    content = render_kit().encode()
    begins = content[: content.index(b"sgl-npu-patch")]
    try:
        if path.exists() and not path.read_bytes().startswith(begins):
            raise Refused(f"{path} exists and is no kit; nothing was written")
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
        try:
            temporary.write_bytes(content)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error


def render_doctor() -> str:
    """Give a program that reads a request on stdin and tells the facts of the same modules."""
    return _joined() + _DOCTOR


def _joined() -> str:
    """Put the modules' sources into one file, each as it stands."""
    sources = {
        name: files(__package__).joinpath(f"{name}.py").read_text("utf-8") for name in _MODULES
    }
    parts = [_HEAD.format(version=__version__)]
    vendored = {name: vendor.body(PROJECT, name) for name in _VENDORED}
    for name, source in {**vendored, **sources}.items():
        text = source.replace("\r\n", "\n")
        assert "'''" not in text, "it would end the literal"
        parts.append(f"\nSOURCES[\"{name}\"] = r'''{text}'''\n")
    return "".join(parts) + _TAIL
