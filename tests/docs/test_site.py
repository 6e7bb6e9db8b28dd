"""The built site: every link inside of it leads somewhere, and it asks nothing of other hosts to be shown."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "docs/_build/html"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.names, self.loaded = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(given["href"])


@pytest.mark.docs
def test_links_lead_somewhere():
    if not SITE.is_dir():
        pytest.skip("the site is not built: make docs")
    pages = {path: Page(path.read_text()) for path in SITE.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = target not in pages or not parts.fragment or unquote(parts.fragment) in pages[target].names
            if not target.exists() or not known:
                broken.append(f"{path.relative_to(SITE)} → {link}")
    assert not broken, "\n".join(broken)
    assert len(pages) > 40


@pytest.mark.docs
def test_nothing_is_loaded_from_elsewhere():
    if not SITE.is_dir():
        pytest.skip("the site is not built: make docs")
    for path in SITE.rglob("*.html"):
        assert not [link for link in Page(path.read_text()).loaded if re.match(r"(https?:)?//", link)], path
