"""The pages about commands agree with the code."""

import re
from pathlib import Path

import pytest

from mpsd.commands.language.command_table import COMMANDS
from tests.contract.transcript import DIFFERENCES, scenes

DOCS = Path(__file__).resolve().parents[4] / "docs"
COMMANDS_PAGE = (DOCS / "commands.md").read_text()
DIFFERENCES_PAGE = (DOCS / "compatibility.md").read_text().partition("## Differences")[2].partition("\n## ")[0]
HEADING = re.compile(r"^### `(.*)`$", re.MULTILINE)


def test_every_command_has_its_section() -> None:
    assert sorted(HEADING.findall(COMMANDS_PAGE)) == sorted(command.syntax for command in COMMANDS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_section_says_what_the_table_says(name: str) -> None:
    command = COMMANDS[name]
    section = COMMANDS_PAGE.partition(f"### `{command.syntax}`\n")[2].partition("\n#")[0]
    assert section.startswith(f"{command.help}. Allowed: {command.privilege.value}.\n")
    assert "**Answer**: " in section
    assert "**Errors**: " in section


def test_every_name_begins_its_syntax() -> None:
    assert [command.syntax.split()[0] for command in COMMANDS.values()] == list(COMMANDS)


def test_every_difference_is_explained() -> None:
    assert sorted(HEADING.findall(DIFFERENCES_PAGE)) == sorted(DIFFERENCES)


def test_every_difference_is_shown_or_says_why_not() -> None:
    shown = {step.why for scene in scenes() for step in scene.steps if step.why}
    assert shown == {name for name, untested in DIFFERENCES.items() if not untested}
