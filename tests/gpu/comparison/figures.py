"""Numbers for people: medians, ratios, and how they are written."""

import statistics
from collections.abc import Sequence

NONE = "-"


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Of the medians: mpsd over vendor."""
    mine, other = median(ours), median(theirs)
    return mine / other if mine is not None and other else None


def pair_range(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The lowest and highest ratio of runs that followed each other: how far chance reaches."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]
    return f"pairs {min(ratios):.3f}-{max(ratios):.3f}" if ratios else ""


def span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def ms(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value / 1000:.2f} s" if value >= 10_000 else f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def number(value: float | None, unit: str = "") -> str:
    if value is None:
        return NONE
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{text} {unit}".strip()


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def of(count: int, total: int) -> str:
    return f"{count} of {total}"
