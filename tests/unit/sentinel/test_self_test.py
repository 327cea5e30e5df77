"""The self-test of the sentinel: where it may work."""

import os
from pathlib import Path

import pytest

from mpsd.config.options import Config
from mpsd.sentinel.self_test import probe_containment


@pytest.mark.root
def test_nothing_is_made_in_another_users_state_directory(short_dir: Path) -> None:
    """Root would follow its owner's links."""
    os.chown(short_dir, 64321, 64321)
    [found] = probe_containment(Config(state_directory=str(short_dir)), {})
    assert "belongs to another user" in found.found
    assert list(short_dir.iterdir()) == []
