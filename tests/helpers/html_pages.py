"""A page of HTML as its elements, and pieces of the report's templates."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from fedilc.report.html.page import page_templates


def macro(file: str, name: str, *values: Any, **options: Any) -> str:
    """Return the markup that one macro of the report's templates makes."""
    return str(getattr(page_templates().get_template(f"{file}.html.jinja").module, name)(*values, **options))


class Page(HTMLParser):
    """The elements of a page with their attributes and texts, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in ("meta", "link", "img"):
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("meta", "link", "img"):
            return
        place = self.open.pop()
        assert self.elements[place][0] == tag, f"{tag} closes {self.elements[place]}"

    def handle_data(self, data: str) -> None:
        for place in self.open:
            self.elements[place][2].append(data)

    def all(self, *tags: str) -> list[str]:
        return [" ".join("".join(texts).split()) for tag, _, texts in self.elements if tag in tags]

    def attributes(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes, _ in self.elements if tag in tags]
