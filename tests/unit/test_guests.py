"""Tests that run in virtual machines import what exists: a guest takes minutes to report that it cannot collect them."""

import ast
import importlib
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(file for folder in ("kmod/guest", "hostile/guest") for file in (TESTS / folder).glob("*.py"))
OURS = ("mpsd", "mpsd_client", "tests")


def imports(file: Path) -> list[tuple[str, str]]:
    """Module and name of each import from our own packages."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    found = [(node.module or "", each.name) for node in nodes for each in node.names]
    return [(module, name) for module, name in found if module.partition(".")[0] in OURS]


def exists(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parents[1].name}/{file.stem}")
def test_what_a_guest_imports_exists(file: Path) -> None:
    assert not [f"{module}: {name}" for module, name in imports(file) if not exists(module, name)]


def test_there_are_such_imports() -> None:
    assert any(imports(file) for file in FILES)
