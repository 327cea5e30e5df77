"""Where a user's images are."""

import os
from pathlib import Path


def default_directory() -> Path:
    """Return $MPSD_IMAGES; else mpsd/images in $XDG_STATE_HOME, which is by default ~/.local/state."""
    if chosen := os.environ.get("MPSD_IMAGES"):
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "mpsd/images"
