"""Hooks of mkdocs.yml: a page's link to a file outside docs/ leads to that file, in the site's folder `checkout`.

The site reads each page where it lies: nothing is copied into docs/, and links stay as they are for readers of the checkout.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "checkout"  # the folder of the site
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<chapter>#[^)\s]*)?\)")


def _linked(page: Path, target: str) -> Path | None:
    """Return the file of this checkout that a link of a page names: of a folder, its README."""
    path = Path(os.path.normpath(page.parent / target))
    if path.is_dir():
        path /= "README.md"
    return path if ":" not in target and path.is_relative_to(ROOT) and path.is_file() else None


def _place(path: Path) -> str:
    """Return where a file lies among the pages of the site."""
    return str(path.relative_to(DOCS)) if path.is_relative_to(DOCS) else f"{OUTSIDE}/{path.relative_to(ROOT)}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, and those that these link to."""
    left = [DOCS / each.src_uri for each in files.documentation_pages()]
    seen = set(left)
    while left:
        page = left.pop()
        for found in LINK.finditer(page.read_text()):
            path = _linked(page, found["target"])
            if path is None or path in seen or path.is_relative_to(DOCS):
                continue
            seen.add(path)
            files.append(File.generated(config, _place(path), abs_src_path=str(path)))
            if path.suffix == ".md":
                left.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page into links between places of the site; a folder without a README keeps its name alone."""
    source = Path(page.file.abs_src_path or "")
    here = os.path.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        path = _linked(source, found["target"])
        if path is None:
            return found["text"] if (source.parent / found["target"]).is_dir() else found[0]
        return f"[{found['text']}]({os.path.relpath(_place(path), here or '.')}{found['chapter'] or ''})"

    return LINK.sub(moved, markdown)
