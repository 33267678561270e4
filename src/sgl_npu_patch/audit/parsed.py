"""Parse the files of a tree, each once, and no more of one than is of interest."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from sgl_npu_patch.audit.npu_path import Place, Where, classify, where_of_file
from sgl_npu_patch.codemods.upstream import symbols
from sgl_npu_patch.engine.errors import Refused, Unparsable
from sgl_npu_patch.engine.text.plain import parse
from sgl_npu_patch.engine.trees.directory import SourceTree

WHOLE = "*"
_STATEMENT = re.compile(rb"^(?: {4})?(?:async def|def|class) |^(?: {4})?@|^[A-Za-z_]", re.MULTILINE)
_CLAUSES = (b"else", b"elif", b"except", b"finally")
_FUNCTION = re.compile(rb"(?: {4})?(?:async )?def ")


@dataclass
class Parsed:
    """Hold a tree's modules.

    Attributes:
        only_npu: files of which nothing but the imports tells that they are for the NPU.
    """

    tree: SourceTree
    only_npu: set[PurePosixPath] = field(default_factory=set)
    _modules: dict[tuple[PurePosixPath, tuple[bytes, ...]], ast.Module] = field(
        default_factory=dict
    )
    _places: dict[tuple[ast.Module, Where], Mapping[ast.AST, Place]] = field(default_factory=dict)

    @cached_property
    def samplers(self) -> set[PurePosixPath]:
        """Name the files of the sampler, which every request runs through."""
        usual = {self.tree.package / form.file for form in symbols.DRAW.forms}
        definitions = (f"def {name}(".encode() for name in symbols.DRAW.names)
        return usual.union(*map(self.tree.containing, definitions))

    def relative(self, path: PurePosixPath) -> PurePosixPath:
        """Give a path below the package."""
        return path.relative_to(self.tree.package)

    def module(self, path: PurePosixPath, near: Collection[bytes] = ()) -> ast.Module:
        """Parse a file.

        Args:
            near: leave out functions in which none of these patterns is found, whatever the case
                of the letters.

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

    def where(self, path: PurePosixPath) -> Where:
        """Tell for which devices a file is."""
        return "npu" if path in self.only_npu else where_of_file(self.relative(path))

    def places(self, path: PurePosixPath, near: Collection[bytes] = ()) -> Mapping[ast.AST, Place]:
        """Tell where the statements and calls of a file run; see `module`.

        Raises:
            Unparsable: it cannot be parsed, or walked.
        """
        module, where = self.module(path, near), self.where(path)
        if (module, where) not in self._places:
            try:
                self._places[module, where] = classify(module, where)
            except RecursionError as error:
                raise Unparsable(path, "its expressions are nested too deeply") from error
        return self._places[module, where]

    def imports(
        self, node: ast.ImportFrom, path: PurePosixPath
    ) -> Iterator[tuple[str, PurePosixPath, str]]:
        """Yield what an import of SGLang's own names here: file and name in it, a star for all."""
        parts = (node.module or "").split(".")
        if node.level:
            base = path.parents[node.level - 1].joinpath(*filter(None, parts))
        elif parts[0] == "sglang":
            base = self.tree.package.joinpath(*parts[1:])
        else:
            return
        for alias in node.names:
            choices = [(base / f"{alias.name}.py", WHOLE), (base / "__init__.py", alias.name)]
            if base.name:
                choices.insert(1, (base.with_suffix(".py"), alias.name))
            for file, name in choices:
                if self.tree.read(file) is not None:
                    yield alias.asname or alias.name, file, name
                    break


def _parse(path: PurePosixPath, data: bytes, near: Collection[bytes]) -> ast.Module:
    if near:
        try:
            return parse(_only_near(data, near))
        except (SyntaxError, ValueError, RecursionError):
            # What was left out was more than functions; the whole file decides.
            pass
    try:
        return parse(data)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 0
        raise Unparsable(path, f"this Python cannot parse it: {error}", line) from error


def _only_near(data: bytes, near: Collection[bytes]) -> bytes:
    """Blank the functions without any of the patterns; every line stays where it is."""
    sought = re.compile(b"|".join(near), re.IGNORECASE)
    starts = [match.start() for match in _STATEMENT.finditer(data)]
    parts = [data[: starts[0]]] if starts else [data]
    decorators = b""
    inside = False
    for start, end in zip(starts, [*starts[1:], len(data)], strict=False):
        part = decorators + data[start:end]
        decorators = part if data[start:end].lstrip().startswith(b"@") else b""
        if decorators:
            continue
        indented = data[start:end].startswith(b" ")
        found = bool(sought.search(part))
        if not indented:
            # Of a class or a test that is about it, all is; what else goes with a test, too.
            inside = found or (inside and part.startswith(_CLAUSES))
        function = _FUNCTION.match(data, start)
        if function and _is_closed(part) and not found and not (indented and inside):
            # What stands above keeps a body: a class, or a test of the device.
            indent = b"    " if indented else b""
            part = indent + b"pass" + b"\n" * part.count(b"\n")
        parts.append(part)
    return b"".join([*parts, decorators])


def _is_closed(part: bytes) -> bool:
    return part.count(b'"""') % 2 == 0 and part.count(b"'''") % 2 == 0
