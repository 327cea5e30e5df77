"""What was found: rows for people, raw figures for programs; as text, markdown and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HEAD = ("what", "vendor", "mpsd", "ratio", "goal", "met", "remark")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met`: whether the goal was reached; None without a goal."""

    section: str
    what: str
    vendor: str = "-"
    mpsd: str = "-"
    ratio: str = ""
    goal: str = ""
    met: bool | None = None
    remark: str = ""

    def cells(self) -> tuple[str, ...]:
        met = "" if self.met is None else "yes" if self.met else "NO"
        return (self.what, self.vendor, self.mpsd, self.ratio, self.goal, met, self.remark)


@dataclass(slots=True)
class Table:
    """Guards nothing; keeps the rows in the order in which they were found."""

    rows: list[Row] = field(default_factory=list)
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # of the machine and the run

    def add(self, section: str, what: str, **cells: Any) -> Row:
        row = Row(section, what, **cells)
        self.rows.append(row)
        return row

    def keep(self, section: str, key: str, figures: Any) -> None:
        self.raw.setdefault(section, {})[key] = figures

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.met is False]

    def text(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.facts.items()]
        for section in self._sections():
            lines += ["", f"== {section}", *_aligned([HEAD, *(row.cells() for row in self._of(section))])]
        return "\n".join([*lines, "", self._verdict()]).rstrip()

    def markdown(self) -> str:
        lines = [f"- {name}: {value}" for name, value in self.facts.items()]
        for section in self._sections():
            lines += ["", f"## {section}", "", _markdown(HEAD), _markdown(["---"] * len(HEAD))]
            lines += [_markdown(row.cells()) for row in self._of(section)]
        return "\n".join([*lines, "", self._verdict(), ""])

    def json(self) -> str:
        return json.dumps({"facts": self.facts, "rows": [asdict(row) for row in self.rows], "raw": self.raw}, indent=1)

    def _verdict(self) -> str:
        goals = sum(row.met is not None for row in self.rows)
        if not goals:
            return ""
        missed = "; ".join(f"{row.section}: {row.what}" for row in self.missed)
        return f"{goals - len(self.missed)} of {goals} goals met" + (f"; not met: {missed}" if missed else "")

    def _sections(self) -> list[str]:
        return list(dict.fromkeys(row.section for row in self.rows))

    def _of(self, section: str) -> list[Row]:
        return [row for row in self.rows if row.section == section]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
