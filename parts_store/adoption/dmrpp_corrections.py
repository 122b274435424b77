"""Find variables of DMR++ files that VirtualiZarr's parser reads wrongly, or leaves out."""

from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

from parts_store.adoption.report import Skipped
from parts_store.adoption.source_file import BlockReader
from parts_store.errors import AdoptionError

_DAP: Final = "{http://xml.opendap.org/ns/DAP/4.0#}"
_DMRPP: Final = "{http://xml.opendap.org/dap/dmrpp/1.0.0#}"
# Elements that are no variables.
_OTHERS: Final = tuple(f"{_DAP}{name}" for name in ("Attribute", "Dimension", "Enumeration", "Group"))
_FILTERS: Final = frozenset({"shuffle", "deflate"})
_BYTES: Final = frozenset({"Byte", "UByte", "Int8", "UInt8", "Char"})


def find_unreadable(reader: BlockReader, group: str | None) -> tuple[tuple[Skipped, ...], frozenset[str]]:
    """Return the variables that are not adopted, and the names of those that the parser should find.

    Raises `AdoptionError` if the name of the file does not say which file it describes.
    """
    if not reader.location.endswith(".dmrpp"):
        problem = "expected a name that ends with '.dmrpp', after the name of the file that it describes"
        raise AdoptionError(reader.location, (("the file", problem),))
    file = reader.buffered()
    file.seek(0)
    root = ET.fromstring(file.read())  # noqa: S314 - VirtualiZarr parses the same text
    wanted = (group or "").strip("/")
    skipped, names = [], set()
    for path, name, element in _variables(root, ""):
        if path == wanted:
            if (reason := _reason(element)) is None:
                names.add(name)
            else:
                skipped.append(Skipped(name, reason))
        elif not wanted:
            hint = f"in a group; pass `parser=virtualizarr.parsers.DMRPPParser(group={path!r})`"
            skipped.append(Skipped(f"{path}/{name}", hint))
    return tuple(skipped), frozenset(names)


def left_out(expected: frozenset[str], found: frozenset[str]) -> tuple[Skipped, ...]:
    """Return the variables that the parser should have found."""
    reason = "VirtualiZarr does not read its type, or where its values are"
    return tuple(Skipped(name, reason) for name in sorted(expected - found))


def _variables(group: ET.Element, path: str) -> Iterator[tuple[str, str, ET.Element]]:
    """Yield all variables with the path of their group and their name."""
    for element in group:
        name = element.get("name", "")
        if element.tag == f"{_DAP}Group":
            yield from _variables(element, f"{path}/{name}".strip("/"))
        elif element.tag.startswith(_DAP) and element.tag not in _OTHERS:
            yield path, name, element


def _reason(variable: ET.Element) -> str | None:
    """Return why the parser would read a variable wrongly; None if it would not."""
    names = [dimension.get("name", f"#{at}") for at, dimension in enumerate(variable.findall(f"{_DAP}Dim"))]
    chunks = variable.find(f"{_DMRPP}chunks")
    if len({name.rpartition("/")[2] for name in names}) < len(names):
        return "two dimensions of the same name"
    if chunks is None:
        return None
    each = chunks.findall(f"{_DMRPP}chunk")
    if any("href" in element.attrib for element in (chunks, *each)):
        return "chunks in other files"
    if others := set(chunks.get("compressionType", "").split()) - _FILTERS:
        return f"filters that VirtualiZarr does not apply: {', '.join(sorted(others))}"
    if any(int(element.get("fm", "0")) for element in each):
        return "chunks with a filter mask"
    if chunks.get("byteOrder", "LE") != "LE" and variable.tag.removeprefix(_DAP) not in _BYTES:
        return "big-endian numbers, which VirtualiZarr takes for little-endian"
    return "a single value, which VirtualiZarr takes for missing" if each and not names else None
