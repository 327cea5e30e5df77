"""The manual page and docs/mpsctl.md agree with the program, and their examples can be typed."""

import pwd
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from mpsctl import __main__ as codes
from mpsctl import manual
from mpsctl.table import COMMANDS, parser

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/mpsctl.md"


def test_the_manual_page_is_one() -> None:
    if not shutil.which("groff"):
        pytest.skip("no groff here")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z"], input=manual.render(), capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_manual_has_every_command_and_option() -> None:
    page = manual.render().replace("\\-", "-")
    for each in COMMANDS:
        assert f"mpsctl {each.words}" in page
        for argument in each.arguments:
            assert f"\\fB{argument.name}\\fR" in page or not argument.is_option


def test_the_manual_has_every_exit_status() -> None:
    numbers = {codes.DONE, codes.REFUSED, codes.USAGE, codes.NO_MPSD, codes.INTERRUPTED, codes.OUTPUT_CLOSED}
    assert {int(number) for number, _ in manual.STATUSES} == numbers
    table = re.findall(r"^\| (\d+) \| ", PAGE.read_text(), re.MULTILINE)
    assert set(map(int, table)) == numbers


def test_the_page_has_every_command() -> None:
    named = set(re.findall(r"^\| `mpsctl ((?:[a-z][a-z-]* ?)+)", PAGE.read_text(), re.MULTILINE))
    assert {name.strip() for name in named} == {each.words for each in COMMANDS}


EXAMPLES = [line for line, _ in manual.EXAMPLES] + re.findall(
    r"^(mpsctl (?![a-z ]+:)[^|\n]+?)(?:  .*)?$", PAGE.read_text(), re.MULTILINE
)


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program accepts the words of every example."""
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.getpwuid(0))
    words = shlex.split(line.partition("|")[0].partition(" > ")[0])
    assert parser().parse_args(words[1:]).command is not None
