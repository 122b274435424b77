"""The tests of zarr that are run on a PartsStore, and those that cannot pass on it, each with the reason.

A test that is left out is run all the same, and must fail: a run fails if one of them passes, or does not exist.
"""

import re
from dataclasses import dataclass
from typing import Final

PIPELINES: Final = ("batched", "fused", "ours")
CHUNKS: Final = ("whole", "parts")
PLACES: Final = ("memory", "disk", "session")
DIMENSIONS: Final = (PIPELINES, CHUNKS, PLACES)

# The other files are tests that use no store (of data types, buffers, settings), tests of zarr's other stores (whose
# `StoreTests` run on ours in `tests/test_store_contract.py`), tests that need other versions of zarr or more packages,
# and `test_api/test_asynchronous.py`, which creates Zarr 2 arrays when it is imported.
FILES: Final = (
    *("tests/test_array.py", "tests/test_api.py", "tests/test_attributes.py", "tests/test_info.py"),
    *("tests/test_resize.py", "tests/test_v2.py", "tests/test_chunk_grids.py", "tests/test_unified_chunk_grid.py"),
    *("tests/test_fastpath_equivalence.py", "tests/test_properties.py", "tests/test_json.py"),
    *("tests/test_group.py", "tests/test_tree.py", "tests/test_metadata"),
    "tests/test_indexing.py",
    *("tests/test_codecs", "tests/test_codec_pipeline.py", "tests/test_codec_pipeline_suite.py"),
    *("tests/test_fused_pipeline.py", "tests/test_pipeline_parity.py"),
    *("tests/test_store/test_core.py", "tests/test_store/test_get_ranges.py", "tests/test_store/test_latency.py"),
    *("tests/test_store/test_logging.py", "tests/test_store/test_wrapper.py", "tests/test_experimental"),
)
# These tests read and write the files of a store on disk themselves.
ON_DISK: Final = (
    "tests/test_metadata/test_repair.py",
    "tests/test_store/test_logging.py",
    "tests/test_store/test_wrapper.py",
)


@dataclass(frozen=True)
class LeftOut:
    """Tests that must fail in some runs.

    Parameters
    ----------
    reason
        Why they fail.
    patterns
        Regular expressions, each of which matches the start of a test's name and parameters, as in
        `test_array.py::test_append_1d[zarr2-memory] zarr_format=2 store=memory`.
    where
        The runs, for instance "parts memory session". If it names no pipeline, that is all pipelines, and so on.
    """

    reason: str
    patterns: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class Refusal:
    """An error that ends tests in some runs, because the store refuses what they do.

    Parameters
    ----------
    reason
        Why the store refuses it.
    error
        A regular expression that matches the message of the error.
    where
        The runs, as for `LeftOut`.
    """

    reason: str
    error: str
    where: str = ""


def applies(entry: LeftOut | Refusal, run: tuple[str, ...]) -> bool:
    """Return whether an entry of the lists applies to a run."""
    words = set(entry.where.split())
    return all(word in words or words.isdisjoint(dimension) for word, dimension in zip(run, DIMENSIONS, strict=True))


def find_pattern(text: str, patterns: dict[str, LeftOut]) -> str | None:
    """Return the pattern that matches a test."""
    return next((pattern for pattern in patterns if re.match(pattern, text)), None)


REFUSALS: Final = (
    Refusal("Icechunk stores Zarr 3 only", "expected Zarr v3, found Zarr v2, which sessions do not support", "session"),
    Refusal("Icechunk stores no other keys than those of nodes and chunks", "invalid zarr key format", "session"),
    Refusal("Icechunk stores one form of chunk keys", "chunk_key_encoding: .* which no session can store", "session"),
    Refusal("Icechunk stores no chunk without its array", "existing node not found", "session"),
    Refusal("Icechunk stores no empty chunk", "zero-length chunk", "whole session"),
    Refusal("Icechunk stores only documents that it can read", "bad metadata: ", "session"),
    Refusal("Icechunk reads rectilinear grids as lists of sizes only", "cannot parse `chunk_shapes`", "session"),
    Refusal("Icechunk has no consolidated metadata", "doesn't support consolidated metadata", "session"),
    Refusal("a writable session cannot be pickled", "cannot be pickled: fork the session", "session"),
    Refusal("a store in memory cannot be pickled", "a PartsStore on memory cannot be pickled", "memory"),
    Refusal("a store is not used in a process that was forked", "a process that was forked after a store", "disk"),
)

LEFT_OUT: Final = (
    LeftOut(
        "the test reads or writes files of the store itself",
        (
            r"test_api\.py::test_save_group_storage_options_positional_args",
            r"test_api\.py::test_no_overwrite_(array|group)\[True-",
            r"test_api\.py::test_no_overwrite_open\[(w-open|w-open_group|w--open)\]",
            r"test_metadata/test_v2\.py::test_open_v2_byte_order_irrelevant_dtype",
        ),
        "memory session",
    ),
    LeftOut(
        "the test deletes all of the store with the empty key, which zarr's store on disk allows, and ours never does",
        (r"test_api\.py::test_open_with_mode_a$",),
    ),
    LeftOut(
        "the test expects another name of the store than that of a PartsStore",
        (
            r"test_metadata/test_repair\.py::test_legacy_chunk_size_round_trip\[v3-sharded-grown\]",
            r"test_store/test_logging\.py::TestLoggingStore::test_store_(repr|str)",
            r"test_store/test_wrapper\.py::TestWrapperStore::test_store_(repr|str)",
        ),
        "disk",
    ),
    LeftOut(
        "the test looks into the dictionary that it opens as a store",
        (r"test_unified_chunk_grid\.py::test_resize_uniform_rectilinear_appends_edge",),
    ),
    LeftOut(
        "the test expects that no key starts with a slash, but obstore ignores a slash in front",
        (r"test_array\.py::test_array_v3_nan_fill_value",),
    ),
    LeftOut(
        "the test stores an incomplete document of an array, which is refused or completed",
        (r"test_json\.py::test_get_json_reads_existing_key",),
    ),
    LeftOut(
        "the test stores a value whose key is also a folder",
        (r"test_array\.py::test_chunks_initialized\[.*-foo\]",),
        "disk",
    ),
    LeftOut(
        "Icechunk returns no chunk beyond the shape of its array",
        (r"test_resize\.py::test_resize_keeps_retained_chunk_bytes\[False-(v3|sharded)-",),
        "session",
    ),
    LeftOut(
        "the test knows how long the document of an array is, which is longer with parts",
        (r"test_array\.py::test_nbytes_stored", r"test_array\.py::TestInfo::test_info_complete"),
        "parts",
    ),
    LeftOut(
        "the test writes the document of an array to disk itself, without the parts",
        (
            r"test_metadata/test_repair\.py::test_edge_lists_in_regular_grid_round_trip",
            r"test_metadata/test_repair\.py::test_consolidate_edge_lists_in_regular_grid",
        ),
        "parts disk",
    ),
    LeftOut(
        "the test compares documents, and that of an array with parts is read without the member storage_transformers",
        (
            r"test_metadata/test_io\.py::test_upsert_metadata_stores_documents_that_differ\[3\]",
            r"test_metadata/test_io\.py::test_upsert_metadata_identical_stores_nothing\[3\]",
            r"test_properties\.py::test_roundtrip_array_metadata_from_store",
        ),
        "parts",
    ),
    LeftOut(
        "the test compares documents byte for byte, and those of arrays with parts have another layout",
        (r"test_api\.py::test_overwrite_without_deletes_creates_node\[(open.array|create|save)",),
        "parts",
    ),
    LeftOut(
        "the test stores an empty chunk, which is too short for parts: the store refuses it",
        (r"test_codecs/test_sharding\.py::test_sharding_truncated_shard_raises\[(full|partial) (read|write)--",),
        "parts",
    ),
    LeftOut(
        "the test counts asynchronous requests, and these pipelines use the synchronous methods of a store",
        (
            r"test_array\.py::test_shard_write_num_gets\[selection1-1\]",
            r"test_codecs/test_sharding_unit\.py::test_load_partial_shard_forwards_global_config_to_get_ranges",
            r"test_codecs/test_sharding_unit\.py::test_load_partial_shard_per_array_config_overrides_global",
            r"test_codecs/test_sharding_unit\.py::test_load_partial_shard_uses_config_defaults",
        ),
        "fused ours",
    ),
    LeftOut(
        "the test counts asynchronous requests, and these pipelines use the synchronous methods of a store",
        (r"test_store/test_logging\.py::test_logging_store_counter\[(local|memory)\]",),
        "fused ours disk",
    ),
    LeftOut(
        "the test replaces a method of zarr's shard index, thread pool or chunks, which our pipeline does not use",
        (
            r"test_fused_pipeline\.py::test_read_write_with_thread_pool",
            r"test_fused_pipeline\.py::test_sync_(api_compute_off_event_loop|io_capability_gates_fused_paths\[full-sync\])",
            r"test_codecs/test_sharding\.py::test_sharding_partial_shard_read__index_chunk_slice_fails\[(local|memory)-",
        ),
        "ours",
    ),
)
