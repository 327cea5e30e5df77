"""The pages as a site (mkdocs.yml, .ci/site.py): complete, without dead links, and without a request to another host."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.machine import ROOT

RESOURCE = re.compile(r"""<(?:a|link|img|script)\b[^>]*\s(?:href|src)="([^"#]*)(?:#[^"]*)?\"""")
LOADED = re.compile(r"""<(?:link|img|script)\b[^>]*\s(?:href|src)="((?:https?:)?//[^"]*)\"""")

pytestmark = [pytest.mark.slow, pytest.mark.deadline(90)]


def build(checkout: Path, place: Path) -> subprocess.CompletedProcess[str]:
    words = ["-m", "mkdocs", "build", "--strict", "--config-file", str(checkout / "mkdocs.yml"), "--site-dir", str(place)]
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_every_page_and_every_link_is_there(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    made = {page.relative_to(tmp_path / "site").with_suffix("") for page in pages}
    written = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert not {page.with_name("index") if page.name == "README" else page for page in written} - made
    dead = []
    for page in pages:
        text = page.read_text()
        assert not LOADED.findall(text), page
        for target in RESOURCE.findall(text):
            if page.name != "404.html" and target and ":" not in target and not (page.parent / target).exists():
                dead.append(f"{page}: {target}")
    assert not dead


@pytest.mark.parametrize("link", ["[a](../no-such-file.md)", "[a](no-such-page.md)", "[a](other.md#no-such-chapter)"])
def test_a_dead_link_is_refused(link: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/site.py", tmp_path / ".ci/site.py")
    (docs / "other.md").write_text("# Another page\n")
    text = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(text[: text.index("\nnav:")])
    (docs / "README.md").write_text(f"# A page\n\n{link}\n")
    shown = build(tmp_path, tmp_path / "site")
    assert shown.returncode != 0
    assert re.search(r"README\.md.*no-such", shown.stderr)
