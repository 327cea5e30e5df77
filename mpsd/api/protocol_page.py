"""Generate the tables of docs/protocol.md from the code: `python -m mpsd.api.protocol_page docs/protocol.md` (make docs).

Parameters, results and topics are declared in the code, each with its meaning and its minor version.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsd.api.method_table import HELLO, METHODS
from mpsd.api.topic_table import TOPICS
from mpsd.wire import daemon_results, minors
from mpsd.wire.fields import Field, Result
from mpsd.wire.messages import MINOR, Hello
from mpsd.wire.params import Param, walk
from mpsd.wire.plain import plain

ASKS: Mapping[str, type] = {HELLO: Hello, **{name: method.ask for name, method in METHODS.items()}}
RESULTS: Mapping[str, Result] = {HELLO: daemon_results.HELLO, **{name: method.result for name, method in METHODS.items()}}


def _later_fields() -> Mapping[str, Mapping[str, int]]:
    """Return the fields that came after their result, by the first method that has it."""
    first = {id(result): name for name, result in reversed(list(RESULTS.items()))}
    later = {name: {each.name: each.since for each in RESULTS[name].fields if each.since} for name in first.values()}
    return {name: later[name] for name in RESULTS if later.get(name)}


FIELDS = _later_fields()
PARAMETERS = {name: later for name in ASKS if (later := {each.name: each.since for each in walk(ASKS[name]) if each.since})}

_PARAMETERS = "| parameter | type | default | meaning |\n|---|---|---|---|\n"
_FIELDS = tuple(f"| {word} | type | meaning |\n|---|---|---|\n" for word in ("result", "entry"))
_TOPICS = "| topic | event | facts |\n|---|---|---|\n"
_MINORS = "| minor | methods | parameters and fields of earlier methods | topics | codes |\n|---|---|---|---|---|\n"
_ROW = re.compile(r"^\| `([a-z_.]+)` \| (.+?) \| (.*?) ?\|(?: (.*?) ?\|)?$", re.MULTILINE)


def render(page: str) -> str:
    """Return the page with its tables generated from the code."""
    for name in ASKS:
        old = section(page, name)
        if _PARAMETERS in old:  # a method without parameters has no table
            page = page.replace(old, _table_in(old, _PARAMETERS, _parameter_rows(name)))
        for head in _FIELDS:
            if head in (old := section(page, name)):
                page = page.replace(old, _table_in(old, head, _field_rows(name)))
    page = _table_in(page, _TOPICS, (f"| `{name}` | {each.what} | {each.facts} |" for name, each in TOPICS.items()))
    return _table_in(page, _MINORS, _minor_rows())


def section(page: str, name: str) -> str:
    return page.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0].partition("\n## ")[0]


def rows(page: str, name: str, head: str) -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each row of the table in a method's section whose first column is `head`."""
    _, found, rest = section(page, name).partition(f"\n| {head} | ")
    return [(each[0], each[1], each[3] or each[2]) for each in _ROW.findall(rest.partition("\n\n")[0])] if found else []


def default_of(param: Param) -> str:
    value = None if param.is_required else plain(param.default)
    return "required" if param.is_required else "nil" if value is None else json.dumps(value)


def _parameter_rows(name: str) -> Iterator[str]:
    for param in walk(ASKS[name]):
        yield f"| `{param.name}` | {param.kind.words} | {default_of(param)} | {param.meaning} |"


def _field_rows(name: str) -> Iterator[str]:
    for each in RESULTS[name].own:
        yield f"| `{each.name}` | {each.kind.words} | {meaning_of(each)} |".replace("|  |", "| |")


def meaning_of(of: Field) -> str:
    """Return the meaning of a field; for a map, also those of its fields."""
    inner = of.kind.within.fields if of.kind.within else ()
    return ": ".join(filter(None, (of.meaning, ", ".join(map(_part, inner)))))


def _part(of: Field) -> str:
    words = of.kind.words if of.kind.words.startswith('"') else ""
    or_nil = "or nil" if of.kind.words.endswith("or nil") and "nil" not in of.meaning else ""
    notes = "; ".join(filter(None, (words, of.meaning, or_nil)))
    return f"`{of.name}`" + (f" ({notes})" if notes else "")


def _minor_rows() -> Iterator[str]:
    for minor in range(1, MINOR + 1):
        added = [
            f"`{method}`: {', '.join(f'`{name}`' for name, since in found.items() if since == minor)}"
            for table in (PARAMETERS, FIELDS)
            for method, found in table.items()
            if minor in found.values()
        ]
        columns = (
            _named(name for name, since in minors.METHODS.items() if since == minor),
            "; ".join(added),
            _named(name for name, topic in TOPICS.items() if topic.since == minor),
            _named(name for name, since in minors.CODES.items() if since == minor),
        )
        yield f"| {minor} | {' | '.join(columns)} |"


def _named(names: Iterator[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table_in(text: str, head: str, made: Iterator[str]) -> str:
    """Return the text with these rows below the table head. Raises ValueError without that head, since its rows would become
    stale."""
    before, found, after = text.partition(head)
    if not found:
        raise ValueError(f"the page has no table with the head {head.splitlines()[0]!r}")
    rest = after[len(re.match(r"(?:\|.*\n)*", after + "\n")[0].rstrip("\n")) :]  # type: ignore[index]
    return f"{before}{head}{chr(10).join(made)}{rest}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(render(path.read_text()))
