from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what these tests remember apart from what the user has."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(folder))
    return folder
