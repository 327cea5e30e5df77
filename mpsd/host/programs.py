"""Where mpsd's own C programs are."""

import sys
from pathlib import Path


def native_directory() -> Path:
    """Return the directory of the keeper and the simulator: `native` of the checkout, or lib/mpsd of the installation."""
    checkout = Path(__file__).resolve().parents[2] / "native"
    return checkout if checkout.is_dir() else Path(sys.prefix, "lib", "mpsd")
