"""The links of the documentation lead somewhere, and every page can be found."""

import re
import unicodedata
from pathlib import Path

import pytest

import parts_store as ps

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return the text of a page without blocks of code, whose comments look like headings."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as Python-Markdown makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        name = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        repeated = sum(1 for each in found if re.fullmatch(rf"{re.escape(name)}(_\d+)?", each))
        found.add(f"{name}_{repeated}" if repeated else name)
    return found


def broken_links(page: Path, root: Path) -> list[str]:
    """Return the relative links of a page that lead to no file, out of the site, or to no heading."""
    docs = root / "docs"
    inside = docs if docs in page.parents else root
    # Links in inline code are examples.
    text = re.sub(r"`[^`\n]*`", "code", prose(page))
    broken = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not (target.is_relative_to(inside) and target.exists()) or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", [*PAGES, ROOT / "conformance/README.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_anchors_exist(page: Path) -> None:
    assert not broken_links(page, ROOT)


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Name\n")
    (tmp_path / "docs/other.md").write_text(
        "# What it `costs`, and why\n## Twice\n## Twice\n```sh\n# no heading\n```\n"
    )
    links = {
        "other.md#what-it-costs-and-why": True,
        "other.md#twice_1": True,
        "#here": True,
        "https://example.org/none": True,
        "other.md#twice_2": False,
        "other.md#no-heading": False,
        "missing.md": False,
        "../README.md": False,
        "#there": False,
    }
    page = tmp_path / "docs/page.md"
    page.write_text("# Here\n`[code](none.md)`\n" + "".join(f"[text]({link})\n" for link in links))
    assert broken_links(page, tmp_path) == [link for link, exists in links.items() if not exists]


def test_every_page_is_in_the_navigation_once() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    listed = [line.rpartition(" ")[2] for line in navigation.splitlines() if line.endswith(".md") and "#" not in line]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES[1:])


# A list of links, and tables of measurements.
WITHOUT_START = ("index.md", "speed.md")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in (*WITHOUT_START, "README.md")], ids=lambda page: page.name
)
def test_every_page_starts_with_what_the_reader_can_do_then(page: Path) -> None:
    start = re.split(r"^# .*$", page.read_text(), maxsplit=1, flags=re.MULTILINE)[1][:500]
    assert re.search(r"After reading th(is|ese) pages? you |In this tutorial you |You will ", start)


def test_the_reference_shows_no_method_that_users_do_not_need() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    patterns = re.findall(r'- "!\^\((.*)\)\$"', settings)
    hidden = {name for pattern in patterns for name in pattern.split("|")}
    assert {"with_own_catalog", "chunks_of_files", "for_workers", "set_parts"} <= hidden
    shown = [name for name in vars(ps.PartsStore) if not re.fullmatch("|".join(["_.*", *hidden]), name)]
    assert shown == [
        *("from_url", "from_session", "store", "session", "must_understand", "is_fast", "with_parts", "with_read_only"),
        *("parts_of", "explain", "view", "tree", "verify", "repair", "check", "manifest", "stats"),
    ]


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
