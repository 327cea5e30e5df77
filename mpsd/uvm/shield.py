"""Which addresses of a client may be made harmless: reads give 0, writes vanish, and no fault comes of either.

Mapped over live memory that would destroy it, so a range is laid only where nothing can ever be:

- CUDA's own ranges begin at 0x2_0000_0000 (measured, driver 580), and cuMemAddressReserve without a wish lies above them.
- Memory of the host is at the same address for the GPU, so the host's mappings count.  Below 4 MiB there is none: images are
  linked to 0x400000 (lld: 0x200000; then it is in the list of mappings), a position-independent one and all that mmap(2)
  chooses lie near the top of the address space, and vm.mmap_min_addr keeps the first 64 KiB free.  MAP_32BIT chooses from
  1 GiB to 2 GiB.
- What remains are programs that ask for such an address.  With the memory of CUDA (cuMemAddressReserve, cuMemHostRegister,
  managed) the driver refuses: the address is in use, which is loud.  Plain host memory there (MAP_FIXED), read by a GPU that
  shares the host's page tables (HMM, ATS), would read as 0: that is why "low" ends at 4 MiB, and "wide" is not the default.

Pure.  Prose: docs/uvm.md, "The shield".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mpsd.uvm.maps import Mapping

ShieldSetting = Literal["off", "low", "wide"]

_PAGE = 64 * 1024  # what the driver can map so; also the first address that it takes
_LOW_END = 4 << 20
_WIDE_END = 1 << 30
_IMAGES_BELOW = 4 << 30  # nothing of a position-independent program lies below
_FIRST_CHUNK_END = 2 << 20


@dataclass(frozen=True, slots=True)
class Span:
    base: int
    length: int

    @property
    def end(self) -> int:
        return self.base + self.length


@dataclass(frozen=True, slots=True)
class Plan:
    """Spans to lay, lowest first, each by itself: one that is refused does not cost the others.  why: where it is less than
    was wished for."""

    spans: tuple[Span, ...]
    why: str = ""


def plan_shield(mappings: Sequence[Mapping], setting: ShieldSetting) -> Plan:
    """What may be laid into a process that has these mappings, which are the lowest it has."""
    if setting == "off":
        return Plan((), "off")
    if not mappings:
        return Plan((), "its mappings are not known")
    lowest = min(mapping.start for mapping in mappings)
    why = ""
    end = _LOW_END
    if setting == "wide":
        if lowest >= _IMAGES_BELOW:
            end = _WIDE_END
        else:
            why = f"low instead of wide: it has a mapping at 0x{lowest:x}"
    if lowest < end:
        end = lowest // _PAGE * _PAGE
        why = f"up to 0x{end:x}: it has a mapping at 0x{lowest:x}"
    if end <= _PAGE:
        return Plan((), f"it has a mapping at 0x{lowest:x}")
    return Plan(_chunks(end), why)


def _chunks(end: int) -> tuple[Span, ...]:
    """From 64 KiB to `end`: to 2 MiB, and from there each as long as all before it."""
    spans = []
    base, chunk_end = _PAGE, _FIRST_CHUNK_END
    while base < end:
        spans.append(Span(base, min(chunk_end, end) - base))
        base, chunk_end = chunk_end, chunk_end * 2
    return tuple(spans)
