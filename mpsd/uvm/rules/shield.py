"""Plan which addresses of a client become harmless: there reads give 0, writes have no effect, and neither causes a fault.

A shield over live memory would destroy it, so a range is mapped only where there can never be memory:

- CUDA's own ranges begin at 0x2_0000_0000 (measured, driver 580), and cuMemAddressReserve without a requested address is above.
- Host memory has the same address for the GPU, so the host's mappings count.  None is below 4 MiB: images are linked to
  0x400000 (lld: 0x200000; then it is in the list of mappings), position-independent ones and all addresses that mmap(2) chooses
  are near the top of the address space, and vm.mmap_min_addr keeps the first 64 KiB free.  MAP_32BIT chooses from 1 GiB to
  2 GiB.
- The remaining case is a program that asks for such an address.  For CUDA memory (cuMemAddressReserve, cuMemHostRegister,
  managed) the driver refuses with an error: the address is in use.  Plain host memory there (MAP_FIXED), read by a GPU that
  shares the host's page tables (HMM, ATS), would read as 0: so "low" ends at 4 MiB, and "wide" is not the default.

Pure.  Prose: docs/uvm.md, "The shield".
"""

from collections.abc import Sequence

from msgspec import Struct

from mpsd.model.client import ShieldSetting
from mpsd.uvm.rules.memory_maps import Mapping

_PAGE = 64 * 1024  # the granule of such mappings; also the lowest address that the driver takes
_LOW_END = 4 << 20
_WIDE_END = 1 << 30
_IMAGES_BELOW = 4 << 30  # a position-independent program has no mapping below
_FIRST_CHUNK_END = 2 << 20


class Span(Struct, frozen=True):
    base: int
    length: int

    @property
    def end(self) -> int:
        return self.base + self.length


class ShieldPlan(Struct, frozen=True):
    """Spans to map, lowest first; a refused one does not affect the others.  why: why it is less than was asked for."""

    spans: tuple[Span, ...]
    why: str = ""


def plan_shield(mappings: Sequence[Mapping], setting: ShieldSetting) -> ShieldPlan:
    """Return the plan for a process with these mappings, which are its lowest."""
    if setting == "off":
        return ShieldPlan((), "off")
    if not mappings:
        return ShieldPlan((), "its mappings are not known")
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
        return ShieldPlan((), f"it has a mapping at 0x{lowest:x}")
    return ShieldPlan(_chunks(end), why)


def _chunks(end: int) -> tuple[Span, ...]:
    """Return the spans from 64 KiB to `end`: to 2 MiB, and from there each as long as all before it."""
    spans = []
    base, chunk_end = _PAGE, _FIRST_CHUNK_END
    while base < end:
        spans.append(Span(base, min(chunk_end, end) - base))
        base, chunk_end = chunk_end, chunk_end * 2
    return tuple(spans)
