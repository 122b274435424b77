"""The pages in docs/format: their schemas are those of the package, their examples are valid, their cases exist."""

import fnmatch
import json
import re
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import zarr

import parts_store as ps
from conformance.cases import load_cases
from parts_store.engine.steps import Found
from parts_store.format.files.description import member_of, recorded_format
from parts_store.format.files.seal import build_tail
from parts_store.format.keys import Chunk
from parts_store.format.layout import Span
from parts_store.format.tags import Tag
from parts_store.transactions import staging
from parts_store.transactions.journaled import Journal, journal_key, staged_keys

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/format").glob("*.md"))
EXTENSIONS = ("concat-parts", "pad", "offset", "packbits")
CHUNK = Chunk("a/c/0/1", ps.ConcatParts([ps.Part(""), ps.Part(".index", size=4100)]), "a")


def blocks(name: str, language: str = "json") -> list[str]:
    page = (ROOT / f"docs/format/{name}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def schema_of(name: str) -> Any:
    return json.loads(resources.files("parts_store.codecs.schemas").joinpath(f"{name}.json").read_text())


def found(data: bytes) -> Found:
    return Found(memoryview(data), Span(0, len(data)), len(data), None, None, None)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_schema_on_a_page_is_the_one_in_the_package(name: str) -> None:
    assert json.loads(blocks(name)[-1]) == schema_of(name)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_examples_of_an_extension_are_valid(name: str) -> None:
    examples = [json.loads(text) for text in blocks(name)[:-1]]
    entries = [entry for each in examples for entry in (each if isinstance(each, list) else [each])]
    extensions = [entry for entry in entries if "name" in entry]
    assert {entry["name"] for entry in extensions} >= {name}
    for entry in extensions:
        jsonschema.validate(entry, schema_of(entry["name"]))
        if entry["name"] == "concat-parts":
            assert ps.ConcatParts.from_json(entry).to_json() == entry


def test_the_example_of_packbits_is_what_the_codec_writes() -> None:
    page = (ROOT / "docs/format/packbits.md").read_text()
    values = re.findall(r"the booleans `(\[.*?\])`", page)
    shown = re.findall(r"(?:are the bytes|they are) `([0-9a-f ]+)`", page)
    places: tuple[Any, ...] = ("none", "first_byte")
    for place, expected in zip(places, shown, strict=True):
        store: dict[str, Any] = {}
        codec = ps.codecs.PackBitsCodec(padding_encoding=place)
        array = zarr.create_array(store, shape=(9,), chunks=(9,), dtype="bool", serializer=codec, compressors=None)
        array[:] = np.array(json.loads(values[0]))
        assert store["c/0"].to_bytes() == bytes.fromhex(expected)


def test_the_example_of_shard_file_is_read_by_this_package() -> None:
    first, example, parts_form, schema = (json.loads(text) for text in blocks("shard_file"))
    assert first["shard_file"] == example["shard_file"] == member_of("tiff")
    for name in ("tiff", "hdf5"):
        jsonschema.validate(member_of(name), schema)
        assert recorded_format({"shard_file": member_of(name)}) == name
    parts = ps.ConcatParts.from_json(parts_form["storage_transformers"][0])
    assert parts.sizes == (None, 4 * 16 + 4)


@pytest.mark.parametrize(("head", "fill"), [(b"", b""), (b"", b"a tile"), (b"II*", b""), (b"II*", b"a tile")])
def test_the_program_on_the_page_checks_the_seals_of_this_package(head: bytes, fill: bytes) -> None:
    names: dict[str, Any] = {}
    (program,) = blocks("shard_file", "python")
    exec(program, names)
    file = head + b"data" + build_tail(b"index", fill, head)
    assert names["is_sealed"](file, b"index")
    assert not names["is_sealed"](file, b"other")
    assert not names["is_sealed"](file[:-1], b"index")
    if head:
        assert not names["is_sealed"](b"x" + file[1:], b"index")


def test_the_tag_on_the_page_is_read_by_this_package() -> None:
    (text,) = [each.strip() for each in blocks("transactions", "text") if each.startswith("1;0")]
    tag = Tag.parse(text)
    assert tag is not None
    assert str(tag) == text
    assert (tag.sizes, tag.embedded) == ((1024, 4), b"Halo")


def test_the_staged_copy_of_the_page_is_read_by_this_package() -> None:
    header, _ = blocks("transactions")
    fields, index = json.loads(header), bytes(range(250)) * 16 + bytes(100)
    encoded = json.dumps(fields).encode()
    tag = Tag(fields["gen"], "s", tuple(fields["sizes"]))
    copy = found(b"PARTSTXN1\n" + len(encoded).to_bytes(4, "little") + encoded + index)
    parts = staging.unstage(CHUNK, copy, tag)
    assert parts is not None
    assert {number: bytes(part.data) for number, part in parts.items()} == {1: index}
    digest = blake2b(b"c/0/1", digest_size=16).hexdigest()
    assert staging.key_of(CHUNK, fields["gen"]) == f"a/.parts-txn/{digest}/{fields['gen']}"


def test_the_journal_of_the_page_is_read_by_this_package() -> None:
    _, text = blocks("transactions")
    journal = Journal.parse(found(text.encode()), CHUNK)
    assert journal is not None
    assert json.loads(journal.dump()) == json.loads(text)
    digest = blake2b(b"c/0/1", digest_size=16).hexdigest()
    assert journal_key(CHUNK) == f"a/.parts-txn/{digest}.journal"
    expected = tuple(f"a/.parts-txn/{digest}.{journal.generation}.{number}" for number in range(2))
    assert staged_keys(CHUNK, journal.generation) == expected


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "conformance/README.md"], ids=lambda page: page.parent.name + page.name
)
def test_cases_that_a_page_names_exist(page: Path) -> None:
    names = [case.name for case in load_cases()]
    groups = "|".join(sorted({name.partition("/")[0] for name in names}))
    for pattern in re.findall(rf"`((?:{groups})/[a-z0-9*-]+)`", page.read_text()):
        assert fnmatch.filter(names, pattern), pattern
