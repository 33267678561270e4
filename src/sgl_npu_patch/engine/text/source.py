"""Read one Python file as text and outline its definitions.

Offsets count characters of the decoded text, which keeps every newline, byte order mark and tab,
so that splicing and encoding again gives back every byte that was not replaced.
"""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from tokenize import detect_encoding
from typing import TYPE_CHECKING

from sgl_npu_patch.engine.errors import Refused, Unparsable
from sgl_npu_patch.engine.text.block import BOM, NEWLINE, Block, Kind, walk

if TYPE_CHECKING:
    from sgl_npu_patch.engine.text.pieces import Pieces

_BARE_CR = re.compile(rb"\r(?!\n)")
_MARKER = re.compile(r"^<{7} .*$(?=[\s\S]*^={7}\s*$[\s\S]*^>{7} )", re.MULTILINE)
"""The first line of two versions that a merge left for somebody to choose from."""


@dataclass(frozen=True, slots=True)
class Source:
    """Hold one decoded file and its outline; editing returns a new one."""

    path: PurePosixPath
    text: str
    encoding: str
    blocks: tuple[Block, ...]

    @property
    def newline(self) -> str:
        """Return the file's first line ending, LF if it has none."""
        match = NEWLINE.search(self.text)
        return match.group() if match else "\n"

    def encode(self) -> bytes:
        """Return the file's bytes.

        Raises:
            Refused: an inserted character has no place in the file's encoding.
        """
        try:
            return self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise Refused(f"{self.path}: cannot be written as {self.encoding}: {error}") from error

    def named(self, name: str, kind: Kind) -> tuple[Block, ...]:
        """List the definitions of a plain name, in file order."""
        return tuple(b for b in self.blocks if b.kind == kind and b.name == name)

    def binds(self, name: str) -> bool:
        """Report whether the module itself always binds a name, by whatever statement."""
        return any(b.name == name and "." not in b.qualname and not b.guards for b in self.blocks)

    def around(self, line: int, name: str = "") -> tuple[Block, ...]:
        """List the functions (of that name) which hold a line of the text as it is now."""
        start = len(self.text) - len(self.text.removeprefix(BOM))
        for match in islice(NEWLINE.finditer(self.text), line - 1):
            start = match.end()
        return tuple(
            block
            for block in self.blocks
            if block.kind == "function"
            and block.name == (name or block.name)
            and block.start <= start < block.end
        )

    def cut(self, block: Block) -> str:
        """Return a block's text."""
        return self.text[block.start : block.end]

    def splice(self, start: int, end: int, text: str) -> Source:
        """Replace a range of whole lines and move the blocks behind it.

        A block that holds the range keeps its start. Definitions inside the range are dropped from
        the outline.
        """
        shift = len(text) - (end - start)
        blocks = []
        for block in self.blocks:
            if block.start >= end and not (block.start == end == start and block.end == start):
                blocks.append(replace(block, start=block.start + shift, end=block.end + shift))
            elif block.start <= start and block.end >= end:
                blocks.append(replace(block, end=block.end + shift))
            elif block.end <= start:
                blocks.append(block)
        joined = self.text[:start] + text + self.text[end:]
        return replace(self, text=joined, blocks=tuple(blocks))


def read_source(path: PurePosixPath, data: bytes, pieces: Pieces | None = None) -> Source:
    """Decode and outline a file.

    Args:
        pieces: what the definitions of files read before were found to hold, to be added to.

    Raises:
        Refused: the bytes are not text in the declared encoding, or not Python.
    """
    try:
        # A cookie stands on one of the first two lines, and lone CRs end lines, too.
        lines = _BARE_CR.sub(b"\n", data) if b"\r" in data else data
        encoding, _ = detect_encoding(io.BytesIO(lines).readline)
        if encoding == "utf-8-sig":
            encoding = "utf-8"
        text = data.decode(encoding)
        faithful = encoding == "utf-8" or text.encode(encoding) == data
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise Unparsable(path, f"cannot be decoded: {error}") from error
    if not faithful:
        raise Refused(
            f"{path}: cannot be edited in its encoding {encoding}: it has several spellings for "
            "the same text, and bytes that need not change would; save the file as UTF-8"
        )
    if "\0" in text:
        raise Unparsable(path, "does not parse: it contains null bytes")
    try:
        blocks = None
        if pieces is not None:
            from sgl_npu_patch.engine.text.pieces import outline_pieces

            blocks = outline_pieces(text, pieces)
        if blocks is None:
            blocks = [*_outline(path, text)]
        return Source(path, text, encoding, tuple(blocks))
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unparsable(path, f"does not parse: {error}") from error


def _outline(path: PurePosixPath, text: str) -> Iterator[Block]:
    body = text.removeprefix(BOM)
    try:
        module = ast.parse(body, filename=str(path))
    except SyntaxError as error:
        _check_merged(path, text)
        from sgl_npu_patch.engine.text.newer_syntax import outline_with_libcst

        yield from outline_with_libcst(path, text, error)
        return
    ends = [len(text) - len(body), *(match.end() for match in NEWLINE.finditer(text)), len(text)]
    yield from walk(module.body, ends, "", ())


def _check_merged(path: PurePosixPath, text: str) -> None:
    """Name it where a file does not parse because a merge was left unresolved.

    Raises:
        Unparsable: the file holds the markers that git leaves around both sides.
    """
    begin = _MARKER.search(text)
    if begin is not None:
        line = len(NEWLINE.findall(text, 0, begin.start())) + 1
        raise Unparsable(
            path, "holds an unresolved merge conflict; resolve it, then run again", line
        )
