"""Which part of which GPU some devices of the resource are.

Each GPU has 100 devices, `GPU-...::07`: one for each percent of its SMs.  A container has a part of one GPU.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNITS = 100
_SEPARATOR = "::"
_PREFIX = "kubernetes-"


@dataclass(frozen=True, slots=True)
class Part:
    """Some percent of the SMs of a GPU: units of it, which no other container has."""

    gpu: str
    units: frozenset[int]

    @property
    def name(self) -> str:
        """The name of its lease, from which `part_of` finds the units again."""
        return f"{_PREFIX}{sum(1 << unit for unit in self.units):x}"

    def __str__(self) -> str:
        return f"{len(self.units)} % of {self.gpu}"


def device_id(gpu: str, unit: int) -> str:
    return f"{gpu}{_SEPARATOR}{unit:02}"


def parse(device_ids: Iterable[str]) -> Part:
    """Return the part that these devices are.  Raises ValueError if they are not of one GPU."""
    units: dict[str, set[int]] = defaultdict(set)
    for each in device_ids:
        gpu, separator, unit = each.rpartition(_SEPARATOR)
        if not (separator and unit.isascii() and unit.isdigit() and int(unit) < UNITS):
            raise ValueError(f"{each!r} is no device of this plugin, such as {device_id('GPU-...', 7)}")
        units[gpu].add(int(unit))
    if len(units) != 1:
        found = ", ".join(f"{len(of)} % of {gpu}" for gpu, of in sorted(units.items()))
        raise ValueError(f"a container has a part of one GPU, and this one would have {found or 'none'}")
    [(gpu, of)] = units.items()
    return Part(gpu, frozenset(of))


def part_of(lease_name: str, gpus: Sequence[str]) -> Part | None:
    """Return the part of a lease that this plugin made; None for another program's."""
    digits = lease_name.removeprefix(_PREFIX)
    if digits == lease_name or len(gpus) != 1:
        return None
    try:
        bits = int(digits, 16)
    except ValueError:
        return None
    return Part(gpus[0], frozenset(unit for unit in range(UNITS) if bits >> unit & 1))


def preferred(available: Iterable[str], must_include: Sequence[str], size: int) -> list[str]:
    """Return `size` devices of one GPU, of the one with least room that has enough; if none has, just some."""
    of_gpu: dict[str, list[str]] = defaultdict(list)
    for each in sorted(set(available)):
        of_gpu[each.rpartition(_SEPARATOR)[0]].append(each)
    wanted = {each.rpartition(_SEPARATOR)[0] for each in must_include}
    fitting = [gpu for gpu in of_gpu if len(of_gpu[gpu]) >= size and wanted <= {gpu}]
    best = min(fitting, key=lambda gpu: (len(of_gpu[gpu]), gpu), default=None)
    rest = of_gpu[best] if best is not None else [each for ids in of_gpu.values() for each in ids]
    return [*must_include, *(each for each in rest if each not in must_include)][:size]
