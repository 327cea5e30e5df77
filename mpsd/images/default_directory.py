"""Where a user's images are."""

import os
from pathlib import Path

from mpsd.errors import UnusablePath


def default_directory() -> Path:
    """Return $MPSD_IMAGES; else mpsd/images in $XDG_STATE_HOME, which is by default ~/.local/state.

    Raise UnusablePath if this user has no home.
    """
    if chosen := os.environ.get("MPSD_IMAGES"):
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "mpsd/images"
    except RuntimeError:
        raise UnusablePath("this user has no home directory: name the directory of the images") from None
