"""Generate the tables of docs/protocol.md from the code, and the protocol as a schema for machines.

The types and defaults of the parameters come from the messages; the tables of topics and of minor versions come
from those in the code.
Only the page has the meanings.  `make docs` writes both:

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
from mpsd.wire import minors, rpc
from mpsd.wire.messages import MINOR, VERSION, Hello
from mpsd.wire.params import Param, schema_of, walk
from mpsd.wire.plain import plain

ASKS: Mapping[str, type] = {HELLO: Hello, **{name: method.ask for name, method in METHODS.items()}}

_PARAMETERS = "| parameter | type | default | meaning |\n|---|---|---|---|\n"
_TOPICS = "| topic | event | facts |\n|---|---|---|\n"
_MINORS = "| minor | methods | parameters and fields of earlier methods | topics | codes |\n|---|---|---|---|---|\n"
_ROW = re.compile(r"^\| `([a-z_.]+)` \| (.+?) \| (.*?) ?\|(?: (.*?) ?\|)?$", re.MULTILINE)
_SAME_AS = re.compile(r"as of\s`([a-z.]+)`")
_WIDTH = 250  # characters in a line of the schema
_PLAIN = {"integer": ("whole number",), "number": ("number", "time"), "string": ("text", "UUID"), "boolean": ("boolean",)}


# -- the page ------------------------------------------------------------------------------------------------------------


def render(page: str) -> str:
    """Return the page with its tables generated from the code."""
    for name in ASKS:
        old = section(page, name)
        if _PARAMETERS in old:  # a method without parameters has no table
            page = page.replace(old, _table_in(old, _PARAMETERS, _parameter_rows(name, old)))
    page = _table_in(page, _TOPICS, (f"| `{name}` | {each.what} | {each.facts} |" for name, each in TOPICS.items()))
    return _table_in(page, _MINORS, _minor_rows())


def section(page: str, name: str) -> str:
    """Return the page's section on a method."""
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


def _minor_rows() -> Iterator[str]:
    for minor in range(1, MINOR + 1):
        added = [
            f"`{method}`: {', '.join(f'`{name}`' for name, since in found.items() if since == minor)}"
            for table in (minors.PARAMETERS, minors.FIELDS)
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


def schema(page: str) -> Mapping[str, Any]:
    """Return the JSON Schema (2020-12): parameters as the code checks them, results as the page describes them."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The protocol of mpsd.sock",
        "description": "Generated from the code and from docs/protocol.md, which says how frames are made of these.",
        "version": VERSION,
        "minor": MINOR,
        "bounds": {
            "datagram_bytes": rpc.MAX_BYTES,
            "levels": rpc.MAX_DEPTH,
            "entries": rpc.MAX_ENTRIES,
            "values": rpc.MAX_VALUES,
        },
        "methods": {name: _method(page, name) for name in ASKS},
        "notifications": ["event", "events.lost", "goodbye"],
        "topics": {name: {"since": topic.since, "description": topic.what} for name, topic in TOPICS.items()},
        "errors": {code.name: {"code": code.value, "since": minors.CODES.get(code.name, 0)} for code in ErrorCode},
    }


def _method(page: str, name: str) -> Mapping[str, Any]:
    method = METHODS.get(name)
    return {
        "since": minors.METHODS.get(name, 0),
        "description": method.help if method else "Agree on the version",
        "who_may": method.privilege.value if method else "anyone",
        "is_audited": method is not None and method.changes,
        "takes_descriptors": method is not None and method.takes is not None,
        "gives_descriptors": method is not None and method.gives,
        "params": _with_since(schema_of(ASKS[name]), minors.PARAMETERS.get(name, {})),
        "result": _result(page, name),
    }


def _result(page: str, name: str) -> Mapping[str, Any]:
    entries = fields_of(page, name, "entry")
    if not entries:
        return _with_since(_record(fields_of(page, name, "result")), minors.FIELDS.get(name, {}))
    entry = _with_since(_record(entries), minors.FIELDS.get(name, {}))
    listed = {"items": {"type": "array", "items": entry}, "next": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    return {"type": "object", "properties": listed, "required": list(listed)}


def fields_of(page: str, name: str, head: str) -> list[tuple[str, str, str]]:
    """Return the fields of a result: the method's own, and those of the method that the page refers to ("as of")."""
    text = section(page, name)
    found = rows(page, name, head)
    if (same := _SAME_AS.search(text)) and (head == "entry") == name.endswith(".list"):
        found = rows(page, same[1], "result") + rows(page, same[1], "entry") + found
    return list({each[0]: each for each in found}.values())


def _record(fields: list[tuple[str, str, str]]) -> Mapping[str, Any]:
    properties = {name: {**_of_words(words), "description": meaning} for name, words, meaning in fields}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _of_words(words: str) -> Mapping[str, Any]:
    """Return the schema of a type in the page's words; an unknown wording becomes a schema that accepts anything."""
    words, can_be_nil, _ = words.partition(" or nil")
    kind = _of_plain(words.removesuffix(","))
    return {"anyOf": [kind, {"type": "null"}]} if can_be_nil and kind else kind


def _of_plain(words: str) -> Mapping[str, Any]:
    if re.fullmatch(r'"\w+"(?:(?:, | or )"\w+")*', words):
        return {"enum": re.findall(r'"(\w+)"', words)}
    for kind, (prefix, *_) in {"array": ("array of",), "object": ("map",)}.items():
        if words.startswith(prefix):
            return {"type": kind}
    return next(({"type": kind} for kind, known in _PLAIN.items() if words in known), {})


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
    target.write_text(lines_of(schema(text)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
