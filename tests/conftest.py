from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

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


MAY_BE_MISSING = ("CUDA", "GPU", "RELUTRIM_SHARED", "no networks in", "not a git checkout")
"""What a machine of CI may lack; where anything else is missing, a skipped test is a failed one."""


def _failed_in_ci(report: Any) -> None:
    """Turn a skip into a failure, with its reason."""
    if not os.environ.get("CI") or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(word in reason for word in MAY_BE_MISSING):
        report.outcome, report.longrepr = "failed", f"nothing may be missing in CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    report = yield
    _failed_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    _failed_in_ci(report)
    return report
