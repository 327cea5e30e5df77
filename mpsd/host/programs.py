"""Where mpsd's own C programs are, and its Python."""

import sys
from pathlib import Path


def native_directory() -> Path:
    """Return the directory of the keeper and the simulator: `native` of the checkout, or lib/mpsd of the installation."""
    checkout = Path(__file__).resolve().parents[2] / "native"
    return checkout if checkout.is_dir() else Path(sys.prefix, "lib", "mpsd")


def own_program(name: str) -> Path:
    """Return one of mpsd's own programs: keeper, inspector, launcher or sentinel."""
    return native_directory() / name / f"mpsd-{name}"


def interpreter() -> Path:
    """Return the Python that runs this program: the front end gives it another name, which need not exist, in its directory."""
    folder = Path(sys.executable).parent
    names = (f"python3.{sys.version_info.minor}", "python3", "python")
    return next((folder / name for name in names if (folder / name).exists()), Path(sys.executable))
