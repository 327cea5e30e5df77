"""Generate the tables of docs/protocol.md from the code: `python -m mpsd.api.protocol_page docs/protocol.md` (make docs).

Parameters, results and topics are declared in the code, each with its meaning.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsd.api.method_table import HELLO, METHODS
from mpsd.api.topic_table import TOPICS
from mpsd.wire import daemon_results
from mpsd.wire.fields import Field, Result
from mpsd.wire.messages import Hello
from mpsd.wire.params import Param, walk
from mpsd.wire.plain import plain

ASKS: Mapping[str, type] = {HELLO: Hello, **{name: method.ask for name, method in METHODS.items()}}
RESULTS: Mapping[str, Result] = {HELLO: daemon_results.HELLO, **{name: method.result for name, method in METHODS.items()}}

_PARAMETERS = "| parameter | type | default | meaning |\n|---|---|---|---|\n"
_FIELDS = tuple(f"| {word} | type | meaning |\n|---|---|---|\n" for word in ("result", "entry"))
_TOPICS = "| topic | event | facts |\n|---|---|---|\n"
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
    return _table_in(page, _TOPICS, (f"| `{name}` | {each.what} | {each.facts} |" for name, each in TOPICS.items()))


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
