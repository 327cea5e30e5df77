"""The protocol of mpsd.sock as a JSON Schema (2020-12): `python -m mpsd.api.json_schema` prints it.

It has every method with its parameters and its result, the topics and the errors.
"""

import json
from collections.abc import Mapping
from typing import Any

from mpsd.api.method_table import METHODS
from mpsd.api.protocol_page import ASKS, RESULTS, meaning_of
from mpsd.api.topic_table import TOPICS
from mpsd.errors import ErrorCode
from mpsd.wire import rpc
from mpsd.wire.fields import Field
from mpsd.wire.messages import MINOR, VERSION
from mpsd.wire.params import schema_of

_LIST = ".list"  # the end of the name of a method that answers with a page of entries


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
        "topics": {name: {"description": topic.what} for name, topic in TOPICS.items()},
        "errors": {code.name: {"code": code.value} for code in ErrorCode},
    }


def _method(name: str) -> Mapping[str, Any]:
    method = METHODS.get(name)
    return {
        "description": method.help if method else "Agree on the version",
        "who_may": method.privilege.value if method else "anyone",
        "is_audited": method is not None and method.changes,
        "takes_descriptors": method is not None and method.takes is not None,
        "gives_descriptors": method is not None and method.gives,
        "params": schema_of(ASKS[name]),
        "result": _result(name),
    }


def _result(name: str) -> Mapping[str, Any]:
    fields = RESULTS[name].fields
    properties = {each.name: _property(each) for each in fields}
    entry = {"type": "object", "properties": properties, "required": list(properties)}
    if not name.endswith(_LIST):
        return entry
    listed = {"items": {"type": "array", "items": entry}, "next": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    return {"type": "object", "properties": listed, "required": list(listed)}


def _property(of: Field) -> Mapping[str, Any]:
    return {**of.kind.schema, "description": meaning_of(of)}


if __name__ == "__main__":
    print(json.dumps(schema()))
