"""What SGLang asks of CANN's own module; all its other parts raise by name."""

from __future__ import annotations

from sgl_npu_patch.simulator.unsimulated import Parts, Unsimulated

PACKAGE = "acl"

_ARCHITECTURE = 601
_OF_A2 = 2201
"""What CANN numbers the architecture of A2 and A3."""


class _Runtime(Unsimulated):
    def get_device_info(self, device: int, attribute: int) -> tuple[int, int]:
        """Return an attribute of a device, and the code of success."""
        if attribute != _ARCHITECTURE:
            raise NotImplementedError(f"{PACKAGE}.rt: attribute {attribute} is not simulated")
        return _OF_A2, 0


PARTS: Parts = {PACKAGE: {"rt": _Runtime(f"{PACKAGE}.rt")}}
