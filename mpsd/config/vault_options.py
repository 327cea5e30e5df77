"""The options of the vault (docs/vault.md)."""

import re
from dataclasses import dataclass
from typing import Literal

from mpsd.config.schema import option
from mpsd.config.value_checks import MEMORY, Accept, between, or_empty

_PERCENT = re.compile(r"([1-9][0-9]?|100)%")
MEMORY_OR_SHARE = Accept(
    'a whole number and G or M, as "40G", or a share of the GPU, as "80%"',
    lambda text: MEMORY.test(text) or _PERCENT.fullmatch(text) is not None,
)


@dataclass(frozen=True, slots=True)
class VaultOptions:
    """GPU memory that outlives the process that filled it (docs/vault.md)."""

    memory: str = option(
        "", 'Memory of each GPU for all arenas, as "40G" or "80%". "": no limit.', accept=or_empty(MEMORY_OR_SHARE)
    )
    user_memory: str = option("", 'The same for the arenas of one user, as "40G". "": no limit.', accept=or_empty(MEMORY))
    layouts: str = option("1G", "Host memory for the layouts of all arenas; one user may take an eighth.", accept=MEMORY)
    max_arenas: int = option(1024, "Most arenas at once.", accept=between(1, 65536))
    user_arenas: int = option(256, "Most arenas of one user.", accept=between(1, 65536))
    max_allocations: int = option(
        131072,
        "Most allocations and layouts at once; each is a descriptor that a keeper of the vault holds.",
        accept=between(64, 1_000_000),
        needs_restart=True,
    )
    user_allocations: int = option(65536, "Most allocations of one user.", accept=between(1, 1_000_000))
    fence: Literal["gentle", "prompt"] = option(
        "gentle",
        "How a new writer is admitted after the old one was killed in mid-kernel. "
        '"gentle": mpsd holds the old GPU context for its co-runners, faults.hold_seconds at most, and the writer waits. '
        '"prompt": mpsd releases it as soon as a writer waits; a long kernel of the dead writer may then end its co-runners.',
    )
    eviction: Literal["off", "expired", "unheld"] = option(
        "off",
        'Arenas that make room when a client asks for it (arena.make_room). "expired": expired ones. "unheld": also others '
        "that no process has open, the one first that was left longest ago.",
    )
    evict_from: Literal["owner", "everybody"] = option(
        "owner", "The arenas that may make room: those of the user who asks, or all. For an operator, all."
    )
    keep: Literal["free", "keep"] = option(
        "free", 'Arenas when mpsd quits, and its domains end. "free": they end. "keep": they wait for the next mpsd.'
    )
