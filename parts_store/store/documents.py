"""What zarr is served of a stored `zarr.json`, and what is stored of one that zarr writes.

zarr is served documents without the storage transformer. When zarr writes a document, the transformer is put back, or
added if the array is new and gets parts. The consolidated metadata of a group is treated in the same way, member by
member. Everything that passes through is noted in the catalog.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from parts_store.engine.steps import Steps
from parts_store.format import metadata
from parts_store.format.keys import join
from parts_store.format.metadata import ArrayRecord, Document
from parts_store.format.shard_index import CODEC
from parts_store.store.catalog import (
    Catalog,
    CatalogEntry,
    PathRecord,
    Plain,
    PlainArray,
    Stamp,
    digest_of,
    document_not_served,
    layout_changed,
)
from parts_store.store.options import StoreOptions


def serve(catalog: Catalog, path: str, stored: bytes | None, *, since: int, stamp: Stamp | None = None) -> bytes | None:
    """Return what zarr is served of a stored document, which was read at the epoch `since`; None if there is none."""
    catalog.refresh()
    document = None if stored is None else metadata.parse(stored)
    entry, served = catalog.understand(path, stored, document)
    is_current = since == catalog.epoch
    if entry is not Plain.NO_ARRAY:
        # Also if a document was changed since it was read: zarr decodes with this one nevertheless.
        catalog.change(path, lambda record: (record.learnt(entry, stamp) if is_current else record).served_array(entry))
    elif is_current:
        is_missing = stored is None
        catalog.change(path, lambda record: record.learnt(entry, stamp).served_no_array(is_missing=is_missing))
    if document is not None and is_current and (not metadata.is_array(document) or document.get("shape") == []):
        catalog.note_attributes(path, document)
    if document is not None and not metadata.is_array(document):
        return _serve_group(catalog, path, stored, document)
    return served


def _serve_group(catalog: Catalog, path: str, stored: bytes | None, document: Document) -> bytes | None:
    changed = False
    for member_path, member, replace_member in _consolidated(path, document):
        if not metadata.is_array(member):
            continue
        served = metadata.complete(member)
        is_same = served == member
        entry: CatalogEntry | None = catalog.protocol.read_array(member, member_path)
        if entry is None:
            is_needed = not is_same or CODEC in repr(member.get("codecs"))
            entry = PlainArray(metadata.dump_compact(member)) if is_needed else Plain.ARRAY
        catalog.change(member_path, partial(PathRecord.served_by_group, entry=entry))
        if not is_same:
            replace_member(served)
            changed = True
    return metadata.dump_compact(document) if changed else stored


def accept(catalog: Catalog, path: str, written: bytes, options: StoreOptions) -> Steps[bytes]:
    """Return what is stored of a document that zarr writes; `options` says which parts a new array gets."""
    document = metadata.parse(written)
    catalog.expect_attributes(path, document)
    if document is None:
        catalog.forget(path)
        return written
    if metadata.is_array(document):
        catalog.protocol.require_keepable(document, path)
        return (yield from _accept_array(catalog, path, written, document, options))
    changed = False
    for member_path, member, replace_member in _consolidated(path, document):
        if metadata.is_array(member) and not member.get("storage_transformers"):
            entry = yield from catalog.read(member_path, trust_consolidated=True)
            if (before := document_not_served(entry)) is not None:
                replace_member(metadata.put_back(member, before))
                changed = True
    catalog.learn_written(path, Plain.NO_ARRAY)
    return metadata.dump(document) if changed else written


def _accept_array(
    catalog: Catalog, path: str, written: bytes, document: Document, options: StoreOptions
) -> Steps[bytes]:
    if document.get("storage_transformers"):
        # The caller writes the stored form of the document, not the one that zarr is served.
        catalog.learn_written(path, catalog.entry_of(document, path, written))
        return written
    served = catalog.record(path).served
    before = yield from _read_before_write(catalog, path)
    if before is Plain.NO_ARRAY and served is not None and served.is_consolidated:
        # zarr reads the groups above an array while it creates it, and they may still mention an earlier array.
        served = None
    digest = None if served is None else served.digest
    if digest is not None and digest != digest_of(before):
        raise layout_changed(path, before)
    if before is Plain.NO_ARRAY and digest is None:
        stored = _new_document(catalog, path, document, options)
    else:
        stored = _changed_document(document, before)
    kept = written if metadata.is_same(stored, document) else metadata.dump(stored)
    catalog.learn_written(path, catalog.entry_of(stored, path, kept))
    return kept


def _new_document(catalog: Catalog, path: str, document: Document, options: StoreOptions) -> Document:
    """Return what is stored of the document of a new array: with the parts that the options give to it."""
    parts = options.parts_of(path)
    if parts is None:
        return document
    placement = catalog.protocol.new_placement(is_split=options.split)
    return metadata.with_parts(
        document,
        parts,
        path,
        placement=placement,
        must_understand=options.must_understand,
        shard_file=options.shard_file,
    )


def _changed_document(document: Document, before: CatalogEntry) -> Document:
    """Return what is stored of a document that zarr writes for an existing array."""
    match before:
        case ArrayRecord(stored=stored):
            return metadata.put_back(document, stored)
        case PlainArray(stored) if (parsed := metadata.parse(stored)) is not None:
            return metadata.put_back(document, parsed)
        case _:
            return document


def _read_before_write(catalog: Catalog, path: str) -> Steps[CatalogEntry]:
    """Return what is at a path where zarr writes the document of an array.

    The document is read now, because another process may have put an array with another layout there, whose document
    must not be replaced. Arrays without parts, old and new, need no more requests than in any other store.
    """
    if catalog.record(path).was_absent and catalog.stamp(path) is None:
        return Plain.NO_ARRAY
    known = catalog.trusted(path)
    if known is Plain.ARRAY or isinstance(known, PlainArray):
        return known
    return (yield from catalog.read_again(path))


def _consolidated(path: str, document: Document) -> Iterator[tuple[str, Document, Callable[[Document], None]]]:
    """Yield the documents in a group's consolidated metadata, each with its path and a function to replace it."""
    consolidated = document.get("consolidated_metadata")
    members: Any = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if isinstance(members, dict):
        for name, member in list(members.items()):
            if isinstance(member, dict):
                yield join(path, name), member, lambda new, name=name: members.__setitem__(name, new)  # type: ignore[misc]
