"""The lock of restore_if_missing."""

import os
from pathlib import Path

import pytest
from mpsd_client import ImageError
from mpsd_client._restoring import restore_if_missing


@pytest.mark.root
def test_nobody_waits_for_another_users_directory(tmp_path: Path) -> None:
    """Its owner could lock it for ever, and with it the start of a service."""
    os.chown(tmp_path, 64321, 64321)
    with pytest.raises(ImageError, match="another user"):
        restore_if_missing("weights", "0", tmp_path / "no-daemon", tmp_path, mode=0o600, ttl=0.0)
