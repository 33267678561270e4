"""Parse the files of a tree, each once, and no more of one than is of interest."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import Refused, Unparsable
from sgl_npu_patch.engine.tree import SourceTree

_BOM = "\ufeff"
_STATEMENT = re.compile(rb"^(?: {4})?(?:async def|def|class) |^(?: {4})?@|^[A-Za-z_]", re.MULTILINE)
_FUNCTION = re.compile(rb"(?: {4})?(?:async )?def ")


@dataclass
class Parsed:
    """Hold a tree's modules."""

    tree: SourceTree
    _modules: dict[tuple[PurePosixPath, tuple[bytes, ...]], ast.Module] = field(
        default_factory=dict
    )

    def relative(self, path: PurePosixPath) -> PurePosixPath:
        """Give a path below the package."""
        return path.relative_to(self.tree.package)

    def module(self, path: PurePosixPath, near: Collection[bytes] = ()) -> ast.Module:
        """Parse a file.

        Args:
            near: leave out functions in which none of these words stands, whatever the case of
                its letters.

        Raises:
            Unparsable: it is no Python of this interpreter.
        """
        key = (path, tuple(near))
        if key not in self._modules:
            data = self.tree.read(path)
            if data is None:
                raise Refused(f"{path}: is gone")
            self._modules[key] = _parse(path, data, near)
        return self._modules[key]


def _parse(path: PurePosixPath, data: bytes, near: Collection[bytes]) -> ast.Module:
    if near:
        try:
            return ast.parse(_only_near(data, near))
        except (SyntaxError, ValueError, RecursionError):
            # What was left out was more than functions; the whole file decides.
            pass
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 0
        raise Unparsable(path, f"this Python cannot parse it: {error}", line) from error


def _only_near(data: bytes, words: Collection[bytes]) -> bytes:
    """Blank the functions without any of the words; every line stays where it is."""
    starts = [match.start() for match in _STATEMENT.finditer(data)]
    parts = [data[: starts[0]]] if starts else [data]
    decorators = b""
    for start, end in zip(starts, [*starts[1:], len(data)], strict=False):
        part = decorators + data[start:end]
        decorators = part if data[start:end].lstrip().startswith(b"@") else b""
        if decorators:
            continue
        if _FUNCTION.match(data, start) and _is_closed(part) and not _mentions(part, words):
            # What stands above keeps a body: a class, or a test of the device.
            indent = b"    " if data[start:end].startswith(b" ") else b""
            part = indent + b"pass" + b"\n" * part.count(b"\n")
        parts.append(part)
    return b"".join([*parts, decorators])


def _is_closed(part: bytes) -> bool:
    return part.count(b'"""') % 2 == 0 and part.count(b"'''") % 2 == 0


def _mentions(part: bytes, words: Collection[bytes]) -> bool:
    small = part.lower()
    return any(word in small for word in words)
