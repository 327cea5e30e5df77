"""docs/protocol.md agrees with the method table, the codes and the topics, and its bytes with the golden frames."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest

from mpsd.api import client_calls, client_values
from mpsd.api.json_schema import schema
from mpsd.api.method_table import HELLO, METHODS, Privilege
from mpsd.api.protocol_page import ASKS, RESULTS, render, section
from mpsd.api.protocol_page import rows as rows_of
from mpsd.api.server import ApiSettings
from mpsd.api.topic_table import TOPICS
from mpsd.api.topics import FAMILIES
from mpsd.errors import ErrorCode
from mpsd.model.domain import DomainState
from mpsd.wire import rpc
from mpsd.wire.messages import VERSION
from mpsd.wire.params import walk
from tests.unit.api.fake_daemon import OPERATOR, OWNER, open_daemon
from tests.unit.api.test_golden import FILES, frames
from tests.unit.api.test_method_table import NEEDS_CLIENT, NEEDS_HOLDER, said

ROOT = Path(__file__).resolve().parents[3]
DOCS, CLIENT = ROOT / "docs", ROOT / "clients/python/mpsd_client"
PAGE = (DOCS / "protocol.md").read_text()
SCHEMA = schema()
METHODS_CHAPTER = PAGE.partition("\n## Methods\n")[2].partition("\n## ")[0]
HEADING = re.compile(r"^### `(.*)`$", re.MULTILINE)


def test_the_tables_that_are_made_of_the_code_are_up_to_date() -> None:
    """Else: make docs."""
    assert render(PAGE) == PAGE


@pytest.mark.parametrize("module", client_values.MODULES)
def test_the_values_of_the_python_client_are_up_to_date(module: ModuleType) -> None:
    """Else: make docs."""
    assert (CLIENT / client_values.name_of(module)).read_text() == client_values.source_of(module)


def test_the_calls_of_the_python_client_are_up_to_date() -> None:
    """Else: make docs."""
    assert (CLIENT / "_calls.py").read_text() == client_calls.source()


def test_a_page_without_a_table_that_is_made_of_the_code_is_refused() -> None:
    """Otherwise a reworded table head leaves the rows as they are, and page and code drift apart."""
    with pytest.raises(ValueError, match="no table"):
        render(PAGE.replace("| topic | event | facts |", "| other |"))


def test_every_method_with_parameters_has_their_table() -> None:
    assert [name for name in ASKS if list(walk(ASKS[name])) and not rows_of(PAGE, name, "parameter")] == []


def test_no_row_of_a_table_is_without_a_meaning() -> None:
    assert [name for name in ASKS for row in rows_of(PAGE, name, "parameter") if not row[2]] == []


def test_every_method_has_its_section_in_the_order_of_the_table() -> None:
    assert HEADING.findall(METHODS_CHAPTER) == [HELLO, *METHODS]


@pytest.mark.parametrize("name", METHODS)
def test_a_section_says_who_may(name: str) -> None:
    method = METHODS[name]
    audited = " Audited." if method.changes else ""
    assert section(PAGE, name).startswith(f"{method.help}. Allowed: {method.privilege.value}.{audited}\n")
    assert f"| {method.privilege.value} |" in PAGE.partition("\n## Who may\n")[2].partition("\n## ")[0]


def test_every_privilege_is_explained() -> None:
    chapter = PAGE.partition("\n## Who may\n")[2].partition("\n## ")[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in chapter.splitlines() if line.startswith("| a")] == [
        privilege.value for privilege in Privilege
    ]


@pytest.mark.parametrize("name", ASKS)
async def test_a_section_has_every_field_of_the_result(name: str, tmp_path: Path) -> None:
    """As they come: an entry for lists, which have `items` and `next` around them."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[OPERATOR.pid] = 1
        daemon.bus.publish("fault.xid", {"xid": 31})
        caller = await daemon.call_as(OWNER if name in NEEDS_CLIENT | NEEDS_HOLDER else OPERATOR)
        result = await (daemon.connect().ask(HELLO, version=VERSION) if name == HELLO else caller.ask(name, **said(name)))
    if set(result) == {"items", "next"}:
        result = result["items"][0]
    assert names(name) == set(result)
    of_result = SCHEMA["methods"][name]["result"]
    of_result = of_result["properties"]["items"]["items"] if name.endswith(".list") else of_result
    assert [field for field, each in of_result["properties"].items() if not fits(result[field], each)] == []


TYPES = {
    "integer": int, "number": (int, float), "string": str, "boolean": bool, "array": list, "object": dict, "null": type(None),
}  # fmt: skip


def fits(value: object, described: dict[str, Any]) -> bool:
    """Check a result as JSON Schema reads the schema of results."""
    if "anyOf" in described:
        return any(fits(value, each) for each in described["anyOf"])
    if "enum" in described:
        return value in described["enum"]
    wanted = TYPES.get(described.get("type", ""), object)
    return isinstance(value, wanted) and not (isinstance(value, bool) and wanted in (int, (int, float)))


@pytest.mark.parametrize("name", ASKS)
def test_what_is_asked_in_the_tests_fits_the_schema(name: str) -> None:
    described = SCHEMA["methods"][name]["params"]
    asked = {"version": VERSION} if name == HELLO else {key: value for key, value in said(name).items() if key != "fds"}
    assert set(described["required"]) <= set(asked) <= set(described["properties"])
    assert [key for key, value in asked.items() if not fits(value, described["properties"][key])] == []


def names(method: str) -> set[str]:
    return set(RESULTS[method].names)


@pytest.mark.parametrize("name", ASKS)
def test_a_section_names_errors_that_there_are(name: str) -> None:
    told = section(PAGE, name).partition("**Errors**: ")[2]
    assert told
    assert set(re.findall(r"`([A-Z_]+)`", told)) <= {code.name for code in ErrorCode}


def test_the_codes_are_those_of_mpsd() -> None:
    chapter = PAGE.partition("\n## Errors\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", chapter, re.MULTILINE)
    assert {(int(code), name) for code, name in told} <= {(code.value, code.name) for code in ErrorCode}
    named = set(re.findall(r"`([A-Z_]{4,})`", METHODS_CHAPTER)) - {"INITIALIZING", "ACTIVE", "FAULT", "MPSD_LEASE"}
    assert named <= {name for _, name in told}


def test_the_bounds_are_those_of_the_code() -> None:
    frames_chapter = " ".join(PAGE.partition("\n## Frames\n")[2].partition("\n## How messages flow\n")[0].split())
    settings = ApiSettings()
    for words in (
        f"{rpc.MAX_BYTES:,} bytes a datagram; {rpc.MAX_DEPTH} levels",
        f"{rpc.MAX_ENTRIES:,} entries in one array or map; {rpc.MAX_VALUES:,} values in a frame",
        f"`hello` within {settings.hello_seconds:g} seconds",
        f"(`api.idle_seconds`, {settings.idle_seconds:g})",
        f"does not read an answer for {settings.send_seconds:g} seconds",
        f"connections of all users | {settings.max_connections}, an eighth",
        f"connections of one user | {settings.max_per_user} |",
        f"events that wait for one subscriber | {settings.max_queued_events};",
    ):
        assert words in frames_chapter
    assert f"with your version of the protocol: {VERSION}" in PAGE


def test_the_topics_are_of_families_that_there_are() -> None:
    chapter = PAGE.partition("\n## Events\n")[2].partition("\n## ")[0]
    topics = re.findall(r"^\| `([a-z]+)\.([a-z]+)` \|", chapter, re.MULTILINE)
    assert {family for family, _ in topics} - {"events"} == set(FAMILIES)
    assert {f"{family}.{word}" for family, word in topics if family != "events"} == set(TOPICS)
    assert {word for family, word in topics if family == "domain"} == {state.value for state in DomainState}


def test_the_bytes_of_the_examples_are_golden() -> None:
    golden = {data for path in FILES for _, data, _ in frames(path.read_text())}
    shown = 0
    for block in re.findall(r"```\n(.*?)```", PAGE.partition("\n### Hello\n")[2], re.DOTALL):
        said, text = "", ""
        for line in [*block.splitlines(), "["]:
            if line.startswith(("> ", "< ", "  ")):
                text += line[2:] + " "
                continue
            if text:
                data = bytes.fromhex(text)
                assert data in golden
                assert json.loads(said) == msgpack.unpackb(data)
                said, text, shown = "", "", shown + 1
            said += line + " "
    assert shown >= 7
