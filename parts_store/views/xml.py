"""XML documents of views."""

import re
from typing import Final
from xml.etree import ElementTree as ET

# Characters that XML cannot have, not even as references.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add(parent: ET.Element, tag: str, text: str | None = None, **attributes: object) -> ET.Element:
    """Add an element; characters that XML cannot have become question marks."""
    values = {name: _FORBIDDEN.sub("?", str(value)) for name, value in attributes.items() if value is not None}
    element = ET.SubElement(parent, tag, values)
    element.text = None if text is None else _FORBIDDEN.sub("?", text)
    return element


def is_xml_text(text: str) -> bool:
    """Return whether XML can have all characters of a text as they are."""
    return _FORBIDDEN.search(text) is None and not re.search(r"[\t\n\r]", text)


def as_xml(root: ET.Element) -> bytes:
    """Return an XML document as indented text."""
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))
