from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Exact arithmetic takes what it takes; a slow machine is no failure.
# In CI the examples are always the same, so that a red run is about the change.
settings.register_profile("relutrim", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("relutrim")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with networks and data that is not part of the repository."""
    named = os.environ.get("RELUTRIM_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set RELUTRIM_SHARED to run this test")
    return folder
