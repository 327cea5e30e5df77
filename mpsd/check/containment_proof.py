"""What is remembered of the self-test: whether a sentinel contains SM exceptions with this driver, GPU and kernel.

The file is in the state directory, of mode 0600.  Prose: docs/sentinel.md, "The self-test".
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from mpsd.errors import UnusablePath

FILE = "sentinel-test.json"
_MOST_PROOFS = 64
_MOST_BYTES = 1 << 20


class Proof(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of one self-test.  why: why nothing was proven; "": an exception was contained.  at: seconds since the
    epoch."""

    driver: str
    gpu: str  # its name
    kernel: str
    why: str
    at: float = field(default_factory=time.time)

    @property
    def is_good(self) -> bool:
        return not self.why

    def is_of(self, driver: str, gpu: str, kernel: str) -> bool:
        return (self.driver, self.gpu, self.kernel) == (driver, gpu, kernel)

    def __str__(self) -> str:
        day = time.strftime("%Y-%m-%d", time.localtime(self.at))
        result = self.why or "an SM exception was contained"
        return f"{result} ({self.gpu}, driver {self.driver}, Linux {self.kernel}, {day})"


def load_proofs(directory: Path) -> tuple[Proof, ...]:
    """Return all results; none if the file is missing or damaged."""
    try:
        with (directory / FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=tuple[Proof, ...])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return ()


def find_proof(directory: Path, driver: str, gpus: Sequence[str], kernel: str) -> Proof | None:
    """Return the result that counts for these GPUs: one that failed, else any; None if one of them was not tested."""
    proofs = load_proofs(directory)
    found = [next((each for each in proofs if each.is_of(driver, gpu, kernel)), None) for gpu in gpus]
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.is_good) if known and len(known) == len(found) else None


def save_proof(directory: Path, proof: Proof) -> None:
    """Store the result in place of an earlier one for the same driver, GPU and kernel.  Raise UnusablePath."""
    others = [each for each in load_proofs(directory) if not each.is_of(proof.driver, proof.gpu, proof.kernel)]
    made = directory / f"{FILE}.{os.getpid()}"
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode([*others, proof][-_MOST_PROOFS:]))
            file.flush()
            os.fsync(descriptor)
        made.replace(directory / FILE)
    except OSError as exc:
        raise UnusablePath(f"the self-test's result cannot be stored in {directory}: {exc.strerror}") from None
