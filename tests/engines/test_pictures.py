"""`make pictures` draws what the pages show: a terminal and the live page, not blank and not large."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.engines import pictures
from tests.engines.browser import missing, open_browser

pytestmark = pytest.mark.root
MOST_BYTES = 100_000


def test_the_pictures_of_a_scene(programs: None, tmp_path: Path) -> None:
    if why := missing() or ("" if shutil.which("tmux") else "not installed: tmux"):
        pytest.skip(why)
    with open_browser() as browser, pictures.scene() as (machine, url):
        pictures.draw_top(machine, browser, tmp_path)
        pictures.draw_page(url, browser, tmp_path)
    for name in ("top.png", "page.png", "page-phone.png"):
        path = tmp_path / name
        with Image.open(path) as image, Image.open(pictures.PICTURES / name) as kept:
            assert image.width == kept.width
            assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 20, f"{name} is blank"
        assert path.stat().st_size < MOST_BYTES
