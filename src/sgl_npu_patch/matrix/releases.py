"""Find the published releases that a run asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.fetch import DISTRIBUTION, list_versions
from sgl_npu_patch.matrix.trees import TreeRef

_SHOWN = 5


def select_releases(specifiers: Iterable[str]) -> Iterator[TreeRef]:
    """Find the published releases that fit specifiers of PEP 440, oldest first.

    A fork's name may stand before its specifier. Pre-releases count where the specifier names one.

    Raises:
        Refused: pip lists none that fits.
        UsageError: a specifier is none.
    """
    for given in specifiers:
        name, specifier = _parse(given)
        pins = [each.version for each in specifier if each.operator == "=="]
        if len(pins) == len(specifier) == 1 and not pins[0].endswith(".*"):
            versions = [Version(pins[0])]
        else:
            published = list_versions(name)
            early = bool(specifier.prereleases)
            versions = [v for v in published if specifier.contains(v, prereleases=early)]
            if not versions:
                near = ", ".join(map(str, published[-_SHOWN:]))
                raise Refused(f"no release of {name} fits {given!r}; the newest are {near}")
        for version in versions:
            shown = str(version) if name == DISTRIBUTION else f"{name}=={version}"
            yield TreeRef(shown, "release", name, str(version))


def _parse(given: str) -> tuple[str, SpecifierSet]:
    try:
        return DISTRIBUTION, SpecifierSet(f"=={Version(given)}")
    except InvalidVersion:
        pass
    try:
        # An empty one would stand for all releases, and is an unset variable rather.
        if given.strip():
            return DISTRIBUTION, SpecifierSet(given)
    except InvalidSpecifier:
        pass
    try:
        requirement = Requirement(given)
    except InvalidRequirement:
        raise UsageError(
            f"{given!r} names no releases; give a specifier such as '>=0.5.3rc2,<0.5.13', or one "
            "behind a fork's name"
        ) from None
    if requirement.extras or requirement.url or requirement.marker or not requirement.specifier:
        raise UsageError(f"{given!r} must be a fork's name and a specifier, and nothing else")
    return requirement.name, requirement.specifier
