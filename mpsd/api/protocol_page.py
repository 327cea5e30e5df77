"""Generate the tables of docs/protocol.md from the code, and the protocol as a schema for machines.

Results, topics and minor versions are declared in the code.  Of parameters it has the types and defaults; the page has their
meanings.  `make docs` writes both:

    python -m mpsd.api.protocol_page docs/protocol.md docs/protocol.schema.json
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpsd.api.method_table import HELLO, METHODS
from mpsd.api.topic_table import TOPICS
from mpsd.errors import ErrorCode
from mpsd.wire import daemon_results, minors, rpc
from mpsd.wire.fields import Field, Result
from mpsd.wire.messages import MINOR, VERSION, Hello
from mpsd.wire.params import Param, schema_of, walk
from mpsd.wire.plain import plain

ASKS: Mapping[str, type] = {HELLO: Hello, **{name: method.ask for name, method in METHODS.items()}}
RESULTS: Mapping[str, Result] = {HELLO: daemon_results.HELLO, **{name: method.result for name, method in METHODS.items()}}


def _later_fields() -> Mapping[str, Mapping[str, int]]:
    """Return the fields that came after their result, by the first method that has it."""
    first = {id(result): name for name, result in reversed(list(RESULTS.items()))}
    later = {name: {each.name: each.since for each in RESULTS[name].fields if each.since} for name in first.values()}
    return {name: later[name] for name in RESULTS if later.get(name)}


FIELDS = _later_fields()

_PARAMETERS = "| parameter | type | default | meaning |\n|---|---|---|---|\n"
LIST = ".list"  # the end of a method's name that answers with a page of entries
_FIELDS = tuple(f"| {word} | type | meaning |\n|---|---|---|\n" for word in ("result", "entry"))
_TOPICS = "| topic | event | facts |\n|---|---|---|\n"
_MINORS = "| minor | methods | parameters and fields of earlier methods | topics | codes |\n|---|---|---|---|---|\n"
_ROW = re.compile(r"^\| `([a-z_.]+)` \| (.+?) \| (.*?) ?\|(?: (.*?) ?\|)?$", re.MULTILINE)
_WIDTH = 250  # characters in a line of the schema


# -- the page ------------------------------------------------------------------------------------------------------------


def render(page: str) -> str:
    """Return the page with its tables generated from the code."""
    for name in ASKS:
        old = section(page, name)
        if _PARAMETERS in old:  # a method without parameters has no table
            page = page.replace(old, _table_in(old, _PARAMETERS, _parameter_rows(name, old)))
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


def _parameter_rows(name: str, old: str) -> Iterator[str]:
    meanings = {each[0]: each[3] for each in _ROW.findall(old.partition(_PARAMETERS)[2].partition("\n\n")[0])}
    for param in walk(ASKS[name]):
        yield f"| `{param.name}` | {param.kind.words} | {default_of(param)} | {meanings.get(param.name, '')} |"


def _field_rows(name: str) -> Iterator[str]:
    for each in RESULTS[name].own:
        yield f"| `{each.name}` | {each.kind.words} | {_meaning(each)} |".replace("|  |", "| |")


def _meaning(of: Field) -> str:
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
            for table in (minors.PARAMETERS, FIELDS)
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


# -- the schema ----------------------------------------------------------------------------------------------------------


def schema() -> Mapping[str, Any]:
    """Return the JSON Schema (2020-12) of parameters and results."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The protocol of mpsd.sock",
        "description": "Generated from the code. docs/protocol.md says how frames are made of these.",
        "version": VERSION,
        "minor": MINOR,
        "bounds": {
            "datagram_bytes": rpc.MAX_BYTES,
            "levels": rpc.MAX_DEPTH,
            "entries": rpc.MAX_ENTRIES,
            "values": rpc.MAX_VALUES,
        },
        "methods": {name: _method(name) for name in ASKS},
        "notifications": ["event", "events.lost", "goodbye"],
        "topics": {name: {"since": topic.since, "description": topic.what} for name, topic in TOPICS.items()},
        "errors": {code.name: {"code": code.value, "since": minors.CODES.get(code.name, 0)} for code in ErrorCode},
    }


def _method(name: str) -> Mapping[str, Any]:
    method = METHODS.get(name)
    return {
        "since": minors.METHODS.get(name, 0),
        "description": method.help if method else "Agree on the version",
        "who_may": method.privilege.value if method else "anyone",
        "is_audited": method is not None and method.changes,
        "takes_descriptors": method is not None and method.takes is not None,
        "gives_descriptors": method is not None and method.gives,
        "params": _with_since(schema_of(ASKS[name]), minors.PARAMETERS.get(name, {})),
        "result": _result(name),
    }


def _result(name: str) -> Mapping[str, Any]:
    fields = RESULTS[name].fields
    properties = {each.name: {**each.kind.schema, "description": _meaning(each)} for each in fields}
    made = {"type": "object", "properties": properties, "required": list(properties)}
    entry = _with_since(made, {each.name: each.since for each in fields if each.since})
    if not name.endswith(LIST):
        return entry
    listed = {"items": {"type": "array", "items": entry}, "next": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    return {"type": "object", "properties": listed, "required": list(listed)}


def _with_since(made: Mapping[str, Any], since: Mapping[str, int]) -> Mapping[str, Any]:
    properties = {
        name: {**each, "since": since[name]} if name in since else each for name, each in made["properties"].items()
    }
    return {**made, "properties": properties}


def lines_of(value: Any, indent: str = "") -> str:
    """Return the value as JSON: on one line if that is short enough, so that a property or a parameter has its own line."""
    text = json.dumps(value)
    if len(indent) + len(text) <= _WIDTH or not isinstance(value, dict):
        return text
    entries = (f"{indent} {json.dumps(name)}: {lines_of(each, indent + ' ')}" for name, each in value.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def main(page: Path, target: Path) -> None:
    text = render(page.read_text())
    page.write_text(text)
    target.write_text(lines_of(schema()) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
