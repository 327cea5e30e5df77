"""What the vendor's program was seen to answer (vendor_580.toml), as values, and how an answer is compared with it."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("vendor_580.toml")
RECORDED = tomllib.loads(FILE.read_text())
DIFFERENCES: Mapping[str, str] = {each["id"]: each.get("untested", "") for each in RECORDED["difference"]}


@dataclass(frozen=True)
class Reply:
    """What a front end printed, and its exit status."""

    out: str
    status: int = 0
    err: str = ""


@dataclass(frozen=True)
class Expected:
    """An expected reply: `out` literally, or a pattern for all of it."""

    out: str = ""
    pattern: str | None = None
    status: int = 0
    err: str = ""

    def accepts(self, reply: Reply) -> bool:
        is_said = re.fullmatch(self.pattern, reply.out) is not None if self.pattern is not None else reply.out == self.out
        return is_said and (reply.status, reply.err) == (self.status, self.err)


@dataclass(frozen=True)
class Step:
    """A line, its sender, the vendor's answer, and mpsd's action; `why` names the difference, if they differ."""

    line: str
    uid: int
    vendor: Expected
    ours: Expected
    why: str = ""

    def filled(self, names: Mapping[str, str]) -> "Step":
        """With the names in braces replaced by what they stand for."""
        line = _fill(self.line, names)
        return replace(self, line=line, vendor=_fill_expected(self.vendor, names), ours=_fill_expected(self.ours, names))


@dataclass(frozen=True)
class Scene:
    name: str
    needs: frozenset[str]
    before: tuple[Step, ...]
    steps: tuple[Step, ...]


def scenes() -> list[Scene]:
    return [
        Scene(each["name"], frozenset(each.get("needs", [])), _steps(each.get("before", [])), _steps(each["steps"]))
        for each in RECORDED["scene"]
    ]


def _steps(steps: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(_step(step) for step in steps)


def _step(step: Mapping[str, Any]) -> Step:
    ours = step.get("ours")
    vendor = _expected(step)
    return Step(step["line"], step.get("uid", 0), vendor, _expected(ours) if ours else vendor, ours["why"] if ours else "")


def _expected(told: Mapping[str, Any]) -> Expected:
    return Expected(told.get("out", ""), told.get("like"), told.get("rc", 0), told.get("err", ""))


def _fill_expected(expected: Expected, names: Mapping[str, str]) -> Expected:
    escaped = {name: re.escape(text) for name, text in names.items()}
    pattern = None if expected.pattern is None else _fill(expected.pattern, escaped)
    return replace(expected, out=_fill(expected.out, names), pattern=pattern)


def _fill(text: str, names: Mapping[str, str]) -> str:
    names = {"insufficient": RECORDED["insufficient"], **names}
    return re.sub(r"\{([a-z]+)\}", lambda found: names.get(found[1], found[0]), text)
