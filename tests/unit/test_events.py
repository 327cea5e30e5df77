"""The events of the log, and the table in docs/operating.md that explains each to an operator."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
ROW = re.compile(r"^\| `([a-z_.]+)` \| .+ \| .+ \|$", re.MULTILINE)


def events_in_code() -> set[str]:
    """Return the first arguments of calls of `log`."""
    # of the logs themselves: two have no logger, one gets it as an argument
    found = {"log.lines_lost", "log.suppressed", "log.unwritable"}
    for path in (ROOT / "mpsd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and is_logging(node.func):
                name = node.args[0] if node.args else None
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: an event is a constant; facts are keys"
                found.add(str(name.value))
    return found


def is_logging(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return False
    return called.value.id == "log" and called.attr in LEVELS


def test_every_event_is_explained_to_an_operator() -> None:
    chapter = (ROOT / "docs/operating.md").read_text().partition("## Events")[2]
    explained = ROW.findall(chapter)
    assert explained == sorted(explained)
    assert set(explained) == events_in_code()
