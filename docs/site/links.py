"""What pages link to and show as GitHub does, and the site differently.

Links to files outside `docs` become downloads; those to CHANGELOG.md, CONTRIBUTING.md and scripts of the
gallery lead to pages made of them. A picture NAME-light.svg that has a NAME-dark.svg beside it is shown in
the reader's colours.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parents[1]
PAGES = {
    DOCS.parent / "README.md": DOCS / "index.md",
    DOCS.parent / "CONTRIBUTING.md": DOCS / "development" / "contributing.md",
    DOCS.parent / "CHANGELOG.md": DOCS / "development" / "changelog.md",
}
PICTURES = {".png", ".svg"}
_LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point the links of a page at what the site has in place of the file."""
    folder = Path(app.env.doc2path(docname)).parent
    if folder.name == "gallery":
        return

    def one(found: re.Match[str]) -> str:
        text, name, anchor = found[1], found[2], found[3] or ""
        file = (folder / name).resolve()
        if file in PAGES:
            return f"[{text}]({os.path.relpath(PAGES[file], folder)}{anchor})"
        if file.parent == DOCS / "examples":
            return f"[{text}]({os.path.relpath(DOCS / 'gallery' / f'{file.stem}.rst', folder)})"
        if file.is_dir():
            return text
        is_page = file.suffix in (".md", ".ipynb") and DOCS in file.parents
        return found[0] if is_page or file.suffix in PICTURES else f"[{text}](<path:{name}>)"

    source[0] = _LINK.sub(one, source[0])


class BothColours(SphinxTransform):
    """Show NAME-light.svg in light and NAME-dark.svg in dark pages."""

    default_priority = 400

    def apply(self) -> None:
        """Add the dark picture beside each light one."""
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for image in list(self.document.findall(nodes.image)):
            dark = image["uri"].replace("-light.", "-dark.")
            if dark != image["uri"] and (folder / dark).exists():
                other = image.deepcopy()
                other["uri"] = dark
                other["classes"] = [*image["classes"], "only-dark"]
                image["classes"] = [*image["classes"], "only-light"]
                image.parent.insert(image.parent.index(image) + 1, other)


def setup(app: Sphinx) -> dict[str, bool]:
    """Change pages when they are read."""
    app.connect("source-read", rewrite)
    app.add_transform(BothColours)
    return {"parallel_read_safe": True}
