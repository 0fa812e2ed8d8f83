"""Pages of HTML as tests read them, and text that must stay text in them."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "path", "circle", "polyline"}
ATTACKS = (
    "<img src=x onerror=alert(1)>",
    "</td></table><script>alert(2)</script>",
    "\"' onmouseover='alert(3)' &lt;b&gt;",
    "javascript:alert(4) <a href=http://evil.example/>x</a>",
    "<svg/onload=alert(5)> <!-- --> <style>*{display:none}</style>",
    "\x1b[31m\x00 half\x9b",
)


@dataclass
class Page(HTMLParser):
    """Elements, attributes, visible text and tables of a page; asserts that every element is closed where it was opened."""

    text: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.visible: list[str] = []
        self.rows: list[list[str]] = []
        self.caption = ""
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows, self.caption = [], ""
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self.caption, []).extend(self.rows)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.visible.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "caption":
            self.caption += data

    def facts(self, caption: str) -> dict[str, str]:
        """A table of two columns."""
        return {row[0]: row[1] for row in self.tables[caption]}
