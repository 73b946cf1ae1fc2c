"""What the documentation site needs besides `docs/`: pages from the repository's root, and links that lead to them.

In the repository a link is a path from the page to a file. On the site the same link leads to the page made from that
file or, where it is code, to the file itself; so no link is written twice, and the site needs no address of a host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "examples/README.md": "examples/README.md",
}
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the code that any page links to."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for page in list(files.documentation_pages()):
        for target, _ in _LINK.findall(page.content_string):
            linked = _resolved(_source(page.src_uri), target)
            if linked and _place(linked) == linked and files.get_file_from_path(linked) is None:
                files.append(File.generated(config, linked, abs_src_path=str(ROOT / linked)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of the repository into those of the site."""
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        linked = _resolved(_source(page.file.src_uri), match[1])
        if linked is None:
            return match[0]
        return f"]({posixpath.relpath(_place(linked), here or '.')}{match[2] or ''})"

    return _LINK.sub(moved, markdown)


def _source(place: str) -> str:
    """Where the file of a page is in the repository."""
    return next((source for source, page in PAGES.items() if page == place), f"docs/{place}")


def _place(source: str) -> str:
    """Where a file of the repository is on the site."""
    return PAGES.get(source, source.removeprefix("docs/"))


def _resolved(source: str, target: str) -> str | None:
    """The file of the repository that a link means; None where it means something else, such as a web page."""
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return linked if not linked.startswith("..") and (ROOT / linked).is_file() else None
