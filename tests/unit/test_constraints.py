"""What `make install` and the Kubernetes plugin's image fetch is pinned by hashes, in versions that are accepted."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "clients/kubernetes"
CLIENT = ROOT / "clients/python"
NEEDED = [(ROOT, ROOT), (ROOT, CLIENT), (ROOT, ROOT / "clients/mpsctl"), (PLUGIN, PLUGIN), (PLUGIN, CLIENT)]
ENTRY = re.compile(r"^([\w.-]+)==(\S+)[^\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pinned(place: Path) -> dict[str, str]:
    text = (place / "constraints.txt").read_text()
    found = ENTRY.findall(text)
    assert text.count("==") == len(found), "an entry without a hash"
    return {name: version for name, version, _ in found}


@pytest.mark.parametrize(("place", "project"), NEEDED)
def test_what_a_project_needs_is_pinned(place: Path, project: Path) -> None:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    wanted = list(map(Requirement, described["project"]["dependencies"] + described["build-system"]["requires"]))
    versions = pinned(place)
    for each in wanted:
        if each.name != "mpsd-client":  # it is installed from here
            assert each.specifier.contains(versions[each.name]), each


def test_the_image_installs_what_the_host_does() -> None:
    ours, theirs = pinned(ROOT), pinned(PLUGIN)
    assert {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]} == set()


def test_the_image_fetches_nothing_without_a_hash() -> None:
    steps = re.findall(r"\bpip install ([^&]*)", (PLUGIN / "Containerfile").read_text())
    assert steps
    for each in steps:
        assert "--require-hashes" in each or {"--no-deps", "--no-build-isolation"} <= set(each.split()), each


@pytest.mark.parametrize("file", ["Makefile", "clients/kubernetes/Containerfile"])
def test_only_wheels_are_fetched(file: str) -> None:
    """pip would fetch what builds a source distribution without looking at a hash."""
    steps = [line for line in (ROOT / file).read_text().splitlines() if "--require-hashes" in line]
    assert steps
    for each in steps:
        assert "--only-binary=:all:" in each
