"""What tests of several packages need."""

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a living process that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()
