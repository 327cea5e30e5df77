"""constraints.txt, which `make install` fetches by: it names everything that mpsd needs, in a version that mpsd accepts."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = ("pyproject.toml", "clients/python/pyproject.toml", "clients/mpsctl/pyproject.toml")
ENTRY = re.compile(r"^([\w.-]+)==(\S+)[^\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pinned() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text()
    found = ENTRY.findall(text)
    assert text.count("==") == len(found), "an entry without a hash"
    return {name: version for name, version, _ in found}


@pytest.mark.parametrize("project", PROJECTS)
def test_what_a_project_needs_is_pinned(project: str) -> None:
    described = tomllib.loads((ROOT / project).read_text())
    wanted = list(map(Requirement, described["project"]["dependencies"] + described["build-system"]["requires"]))
    versions = pinned()
    for each in wanted:
        if each.name != "mpsd-client":  # it is installed from here
            assert each.specifier.contains(versions[each.name]), each
