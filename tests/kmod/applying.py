"""What kmod/apply makes of a driver's sources, without a kernel and without a root."""

import difflib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.kmod.cases import CHECKOUT

KMOD = CHECKOUT / "kmod"
CALLS = 7  # what kmod/apply inserts


@dataclass(frozen=True, slots=True)
class Applied:
    """calls, inserted: of ours in upstream's files, and lines altogether."""

    driver: str
    calls: int
    inserted: int


def apply_to(archive: Path) -> Applied:
    """Unpack the sources and apply the calls to them.  AssertionError: kmod/apply refuses them."""
    with tempfile.TemporaryDirectory(prefix="mpsd-kmod-") as name:
        subprocess.run(["tar", "-C", name, "-xf", archive], check=True)
        (header,) = Path(name).glob("**/nvidia-uvm/uvm_lock.h")
        tree = header.parents[1]
        done = subprocess.run([KMOD / "apply", tree], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return applied_to(tree)


def applied_to(tree: Path) -> Applied:
    """What a tree has of ours, which kmod/apply has changed; its list of sources without the self test's part."""
    version = re.search(r'NV_VERSION_STRING=\\"([0-9.]+)', (tree / "Kbuild").read_text())
    assert version, "the tree does not say its version"
    lines = inserted_lines(tree / "nvidia-uvm")
    return Applied(version[1], sum(len(re.findall(r"\buvm_mpsd_\w+\(", line)) for line in lines), len(lines))


def inserted_lines(uvm: Path) -> list[str]:
    """What upstream's own files have now and did not have."""
    found = []
    for file in (uvm / ".before-mpsd").iterdir():
        before, after = (path.read_text().splitlines() for path in (file, uvm / file.name))
        found += [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    return found
