"""Find definitions in a package by their names, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from sgl_npu_patch.engine.errors import AnchorError, Site
from sgl_npu_patch.engine.nearest import find_nearest
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.text.block import Block, Kind
from sgl_npu_patch.engine.text.fingerprint import Hint
from sgl_npu_patch.engine.text.source import Source

_LOOKS: dict[Kind, bytes] = {
    "function": rb"\bdef\s+%s\b",
    "class": rb"\bclass\s+%s\b",
    "assignment": rb"(?m)^[^\r\n#]*\b%s\b[^\r\n]*=",
    "import": rb"\b%s\b",
    "statement": rb"\b%s\b",
}
"""What a file must contain to define a name; cheaper to see than to outline it."""
_SHOWN = 3
"""How many files that mention a name a conflict lists."""


def find_block(
    overlay: Overlay,
    names: Sequence[str],
    kind: Kind,
    *,
    holding: str = "",
    hint: Callable[[], Hint] = Hint,
) -> tuple[Source, Block]:
    """Find the one definition with one of these names.

    Args:
        holding: text that tells the definition from others of its name.
        hint: describes the definition, for the conflict where there is none.

    Raises:
        AnchorError: there is none, or more than one, or it is not always in force.
    """
    found = [
        (source, block)
        for name in names
        for source in _defining(overlay, name, kind, holding)
        for block in source.named(name, kind)
        if holding in source.cut(block)
    ]
    if not found:
        raise _gone(overlay, names, kind, holding, hint)
    if len(found) > 1:
        raise AnchorError(
            sought=f"{kind} {' or '.join(names)}",
            expected="exactly one definition in the package",
            found=f"{len(found)} definitions",
            where=tuple(Site(s.path, b.line, b.qualname) for s, b in found),
            action="keep one of them: remove or rename the others",
        )
    _check_in_force(*found[0])
    return found[0]


def find_call(
    overlay: Overlay, names: Sequence[str], hint: Callable[[], Hint] = Hint
) -> tuple[Source, Block]:
    """Find the function with the one call of another, which nothing else in the package uses.

    Args:
        names: the names that the other may have.

    Raises:
        AnchorError: there is no call or more than one, or the name is used otherwise.
    """
    if not any(is_defined(overlay, name, "function") for name in names):
        raise _gone(overlay, names, "function", "", hint)
    uses = [
        (source, use, name)
        for name in names
        for path in overlay.mentioning(name)
        if (source := overlay.source(path))
        for use in overlay.cache.uses_of(name, source.text)
    ]
    called = [
        (source, use, name)
        for source, use, name in uses
        if use.kind == "call" and not source.around(use.line, name)
    ]
    holders = [(source, block) for source, use, _ in called for block in source.around(use.line)]
    others = [(source, use, name) for source, use, name in uses if use.kind == "other"]
    if len(called) == len(holders) == 1 and not others:
        return holders[0]
    found = [
        f"{len(some)} {noun}{'' if len(some) == 1 else 's'}"
        for noun, some in (("call", called), ("other use", others))
        if some
    ]
    outside = " outside of any function" if called and not holders else ""
    raise AnchorError(
        sought=f"the caller of {' or '.join(names)}",
        expected="exactly one call in the package, inside a function",
        found=(" and ".join(found) or "none") + outside,
        where=tuple(Site(s.path, u.line, name) for s, u, name in called + others),
        action="leave one call, inside a function, and no other use",
    )


def is_defined(overlay: Overlay, name: str, kind: Kind) -> bool:
    """Report whether the package defines a name at least once."""
    return any(source.named(name, kind) for source in _defining(overlay, name, kind))


def _gone(
    overlay: Overlay, names: Sequence[str], kind: Kind, holding: str, hint: Callable[[], Hint]
) -> AnchorError:
    """Return the error for a definition that is nowhere, with what may have taken its place."""
    sought = f"{kind} {' or '.join(names)}"
    others = [
        Site(source.path, block.line, block.qualname)
        for name in names
        for source in _defining(overlay, name, kind)
        for block in source.named(name, kind)
    ]
    if others:
        return AnchorError(
            sought=sought,
            expected=f"exactly one definition in the package with {holding} in it",
            found="none with it",
            where=tuple(others),
            action=f"restore {holding} in it",
        )
    close = find_nearest(overlay, names, kind, hint())
    mentions = tuple(
        Site(path, 0, f"mentions {name}")
        for name in names
        for path in overlay.mentioning(name)[:_SHOWN]
    )
    nowhere = Site(overlay.tree.package / "__init__.py", 0, f"without {' or '.join(names)}")
    return AnchorError(
        sought=sought,
        expected="exactly one definition in the package",
        found="none",
        where=mentions or (close.site if close else nowhere,),
        nearest=str(close) if close else "",
        action=(
            f"restore the name {close.name} and its uses, if {close.site.symbol} is the same {kind}"
            if close
            else "restore it under this name, or report the release that has none"
        ),
    )


def _defining(overlay: Overlay, name: str, kind: Kind, holding: str = "") -> Iterator[Source]:
    """Outline only the files in which a definition of the name can stand."""
    for path in overlay.mentioning(name):
        if _may_define(overlay, path, name, kind, holding):
            source = overlay.source(path)
            if source is not None:
                yield source


def _may_define(overlay: Overlay, path: PurePosixPath, name: str, kind: Kind, holding: str) -> bool:
    if path in overlay.pending:
        return True
    known, key = overlay.cache.defining, (path, name + holding, kind)
    if key not in known:
        data = overlay.read(path) or b""
        looks = re.compile(_LOOKS[kind] % re.escape(name.encode()))
        known[key] = holding.encode() in data and looks.search(data) is not None
    return known[key]


def _check_in_force(source: Source, block: Block) -> None:
    """Insist that a definition is the one that its name stands for whenever the file is loaded."""
    holders = [b for b in source.blocks if b.start <= block.start and block.end <= b.end]
    inside = [b for b in holders if b.kind == "function" and b is not block]
    guards = [guard for b in holders if b.kind == "class" or b is block for guard in b.guards]
    again = [
        other
        for kind in _REBINDING[block.kind]
        for other in (source.named(block.name, kind) if "." not in block.qualname else ())
    ]
    if not (inside or guards or again):
        return
    what = f"inside the function {inside[-1].name}" if inside else f"under `{' '.join(guards)}`"
    raise AnchorError(
        sought=f"{block.kind} {block.qualname}",
        expected="a definition of the module or of a class, under no condition and not replaced",
        found=f"one that an {again[0].kind} replaces" if again else f"one {what}",
        where=tuple(Site(source.path, b.line, b.qualname) for b in (block, *again)),
        action="define it once, of the module or of a class, under no condition",
    )


_REBINDING: dict[Kind, tuple[Kind, ...]] = {
    "function": ("assignment", "import"),
    "class": (),
    "assignment": ("import",),
    "import": (),
    "statement": (),
}
"""What else must not bind a definition's name in its module."""
