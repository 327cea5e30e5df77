"""docs/protocol.md says what the method table, the codes and the topics say, and its bytes are those of the golden frames."""

import json
import re
from pathlib import Path

import msgpack
import pytest

from mpsd.api.server import ApiSettings
from mpsd.api.table import HELLO, METHODS, Privilege
from mpsd.api.topics import FAMILIES
from mpsd.errors import ErrorCode
from mpsd.model import DomainState
from mpsd.wire import rpc
from mpsd.wire.messages import VERSION, Hello
from mpsd.wire.params import Param, walk
from mpsd.wire.plain import plain
from tests.unit.api.house import OPERATOR, OWNER, open_house
from tests.unit.api.test_golden import FILES, frames
from tests.unit.api.test_table import NEEDS_CLIENT, NEEDS_HOLDER, said

PAGE = (Path(__file__).resolve().parents[3] / "docs/protocol.md").read_text()
METHODS_CHAPTER = PAGE.partition("\n## Methods\n")[2].partition("\n## ")[0]
HEADING = re.compile(r"^### `(.*)`$", re.MULTILINE)
ROW = re.compile(r"^\| `([a-z_.]+)` \| (.+?) \| (.*?) ?\|(?: .* \|)?$", re.MULTILINE)
SAME_AS = re.compile(r"as of\s`([a-z.]+)`")
ASKS = {HELLO: Hello, **{name: method.ask for name, method in METHODS.items()}}


def section(name: str) -> str:
    return METHODS_CHAPTER.partition(f"### `{name}`\n")[2].partition("\n### ")[0]


def rows(name: str, head: str) -> list[tuple[str, str, str]]:
    """Of the table in the method's section whose first column is called so; none where there is no such table."""
    _, found, rest = section(name).partition(f"\n| {head} | ")
    return ROW.findall(rest.partition("\n\n")[0]) if found else []


def default_of(param: Param) -> str:
    value = None if param.is_required else plain(param.default)
    return "required" if param.is_required else "nil" if value is None else json.dumps(value)


def test_every_method_has_its_section_in_the_order_of_the_table() -> None:
    assert HEADING.findall(METHODS_CHAPTER) == [HELLO, *METHODS]


@pytest.mark.parametrize("name", METHODS)
def test_a_section_says_who_may(name: str) -> None:
    method = METHODS[name]
    audited = " Audited." if method.changes else ""
    assert section(name).startswith(f"{method.help}. Who may: {method.privilege.value}.{audited}\n")
    assert f"| {method.privilege.value} |" in PAGE.partition("\n## Who may\n")[2].partition("\n## ")[0]


def test_every_privilege_is_explained() -> None:
    chapter = PAGE.partition("\n## Who may\n")[2].partition("\n## ")[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in chapter.splitlines() if line.startswith("| a")] == [
        privilege.value for privilege in Privilege
    ]


@pytest.mark.parametrize("name", ASKS)
def test_a_section_has_every_parameter(name: str) -> None:
    expected = [(param.name, param.kind.words, default_of(param)) for param in walk(ASKS[name])]
    assert rows(name, "parameter") == expected


@pytest.mark.parametrize("name", ASKS)
async def test_a_section_has_every_field_of_the_result(name: str, tmp_path: Path) -> None:
    """As they come: an entry for lists, which have `items` and `next` around them."""
    async with open_house(tmp_path) as house:
        house.fakes.processes[OPERATOR.pid] = 1
        house.bus.publish("fault.xid", {"xid": 31})
        caller = await house.call_as(OWNER if name in NEEDS_CLIENT | NEEDS_HOLDER else OPERATOR)
        result = await (house.connect().ask(HELLO, version=VERSION) if name == HELLO else caller.ask(name, **said(name)))
    if set(result) == {"items", "next"}:
        result = result["items"][0]
    told = rows(name, "result") + rows(name, "entry")
    if same := SAME_AS.search(section(name)):
        told += rows(same[1], "result") + rows(same[1], "entry")
    assert {field for field, _, _ in told} == set(result)


@pytest.mark.parametrize("name", ASKS)
def test_a_section_names_errors_that_there_are(name: str) -> None:
    told = section(name).partition("**Errors**: ")[2]
    assert told
    assert set(re.findall(r"`([A-Z_]+)`", told)) <= {code.name for code in ErrorCode}


def test_the_codes_are_those_of_mpsd() -> None:
    chapter = PAGE.partition("\n## Errors\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", chapter, re.MULTILINE)
    assert {(int(code), name) for code, name in told} <= {(code.value, code.name) for code in ErrorCode}
    named = set(re.findall(r"`([A-Z_]{4,})`", METHODS_CHAPTER)) - {"INITIALIZING", "ACTIVE", "FAULT", "MPSD_LEASE"}
    assert named <= {name for _, name in told}


def test_the_bounds_are_those_of_the_code() -> None:
    frames_chapter = " ".join(PAGE.partition("\n## Frames\n")[2].partition("\n## ")[0].split())
    settings = ApiSettings()
    for words in (
        f"{rpc.MAX_BYTES:,} bytes a datagram; {rpc.MAX_DEPTH} levels",
        f"{rpc.MAX_ENTRIES:,} entries in one array or map; {rpc.MAX_VALUES:,} values in a frame",
        f"says `hello` within {settings.hello_seconds:g} seconds",
        f"(`api.idle_seconds`, {settings.idle_seconds:g})",
        f"does not read an answer for {settings.send_seconds:g} seconds",
    ):
        assert words in frames_chapter
    assert f"with the version you speak: {VERSION}." in PAGE


def test_the_topics_are_of_families_that_there_are() -> None:
    chapter = PAGE.partition("\n## Events\n")[2].partition("\n## ")[0]
    topics = re.findall(r"^\| `([a-z]+)\.([a-z]+)` \|", chapter, re.MULTILINE)
    assert {family for family, _ in topics} - {"events"} == set(FAMILIES)
    assert {word for family, word in topics if family == "domain"} == {state.value for state in DomainState}


def test_the_bytes_of_the_examples_are_golden() -> None:
    golden = {data for path in FILES for _, data, _ in frames(path.read_text())}
    shown = 0
    for block in re.findall(r"```\n(.*?)```", PAGE.partition("\n## Examples\n")[2], re.DOTALL):
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
