"""A chunk in parts: every range of it reads, and every chunk is cut, as if it were one object."""

import itertools
from collections.abc import Sequence

import pytest
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from parts_store.engine.steps import Get, Head
from parts_store.errors import ChunkSizeError
from parts_store.format.layout import BufferChain, Located, NeedSizes, Probe, Span, Wanted, plan_read, plan_split
from parts_store.format.tags import Tag
from tests.transactions.objects import (
    KEY,
    Objects,
    chunk_of,
    every_declaration,
    every_request,
    every_size,
    pieces,
    protocol,
    requested,
    settings,
    sliced,
)

SUFFIXES = (".header", "", ".index", ".x")
GENERATION = "0123456789abcdef" * 2


def probed(parts: Sequence[bytes], declared: tuple[int | None, ...], wanted: Wanted) -> bytes:
    """Return the bytes that the first probes return, in their order."""
    plan = plan_read(declared, wanted)
    assert isinstance(plan, NeedSizes)
    spans = [(probe.part, requested(probe.wanted, len(parts[probe.part]))) for probe in plan.probes]
    return b"".join(parts[part][span.start : span.stop] for part, span in spans if span is not None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_probes_with_one_unknown_size_return_all_bytes(count: int) -> None:
    for sizes in every_size(count, 4):
        chunk = bytes(range(1, sum(sizes) + 1))
        parts = pieces(chunk, sizes)
        for unknown, wanted in itertools.product(range(count), every_request(6)):
            declared = (*sizes[:unknown], None, *sizes[unknown + 1 :])
            plan = plan_read(declared, wanted)
            if isinstance(plan, Located):
                continue
            assert len({probe.part for probe in plan.probes}) == len(plan.probes)
            stop = sum(sizes[: unknown + 1])
            match wanted:
                case RangeByteRequest(start=start, end=end):
                    # What lies behind the unknown part is asked for when its size is known, and not before.
                    assert probed(parts, declared, wanted) == chunk[start : min(end, stop)]
                case SuffixByteRequest(suffix=suffix):
                    start = max(0, len(chunk) - suffix)
                    assert probed(parts, declared, wanted) == chunk[max(start, stop - sizes[unknown]) :]
                case OffsetByteRequest(offset=offset) if offset < stop:
                    assert probed(parts, declared, wanted) == chunk[offset:]
                case OffsetByteRequest():
                    assert probed(parts, declared, wanted).endswith(sliced(chunk, wanted))
                case None:
                    assert probed(parts, declared, wanted) == chunk


def test_no_probe_asks_for_an_empty_range() -> None:
    for count in (1, 2, 3):
        for sizes, wanted in itertools.product(every_size(count, 3), every_request(5)):
            for declared in every_declaration(sizes):
                plan = plan_read(declared, wanted)
                for probe in plan.probes if isinstance(plan, NeedSizes) else ():
                    assert probe.wanted is None or requested(probe.wanted, 100) != Span(0, 0), (declared, wanted)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_plan_with_known_sizes_is_exact(count: int) -> None:
    for sizes, wanted in itertools.product(every_size(count, 4), every_request(6)):
        owners = [part for part, size in enumerate(sizes) for _ in range(size)]
        plan = plan_read(sizes, wanted)
        assert isinstance(plan, Located)
        assert all(each.span.nbytes for each in plan.slices)
        assert [each.part for each in plan.slices] == sorted(set(sliced(bytes(owners), wanted)))


def test_a_range_in_the_part_of_unknown_size_asks_for_exactly_that_range() -> None:
    assert plan_read((4, None, 3), RangeByteRequest(6, 9)) == NeedSizes((Probe(1, RangeByteRequest(2, 5)),))
    assert plan_read((4, None, 3), SuffixByteRequest(5)) == NeedSizes(
        (Probe(1, SuffixByteRequest(2)), Probe(2, RangeByteRequest(0, 3)))
    )


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (1, 0), (-2, -1)])
def test_a_span_cannot_be_negative(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=r"span \[.*\) is negative"):
        Span(start, stop)


# --- the whole read -----------------------------------------------------------------------------------------------


def bucket(chunk: bytes, sizes: tuple[int, ...], *, has_tags: bool) -> Objects:
    """Return the parts of a chunk, written by this package or by another program."""
    objects = Objects(has_tags=has_tags)
    for suffix, data in zip(SUFFIXES, pieces(chunk, sizes), strict=False):
        objects.put(KEY + suffix, data, Tag(GENERATION, "c", sizes))
    return objects


@pytest.mark.parametrize("tagged", [True, False], ids=["tagged", "untagged"])
@pytest.mark.parametrize(("count", "total"), [(1, 5), (2, 4), pytest.param(3, 4, marks=pytest.mark.slow), (4, 2)])
def test_any_range_in_a_bucket_reads_like_one_object(count: int, total: int, tagged: bool) -> None:
    requests = every_request(total + 2)
    for sizes in every_size(count, total):
        value = bytes(range(1, sum(sizes) + 1))
        objects = bucket(value, sizes, has_tags=tagged)
        for declared in every_declaration(sizes):
            chunk = chunk_of(dict(zip(SUFFIXES, declared, strict=False)))
            for wanted in requests:
                result = objects.run(protocol(has_tags=tagged).read(chunk, [wanted], settings()))
                assert result is not None
                assert b"".join(result.values[0] or ()) == sliced(value, wanted), (declared, sizes, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("max_gap", [0, 2])
@pytest.mark.parametrize("max_nbytes", [1, 100])
def test_any_two_ranges_read_together_as_each_by_itself(max_gap: int, max_nbytes: int) -> None:
    pairs = list(itertools.combinations(every_request(4), 2))
    for number, sizes in enumerate([*every_size(2, 3), *every_size(3, 2)]):
        value = bytes(range(1, sum(sizes) + 1))
        objects = bucket(value, sizes, has_tags=bool(number % 2))
        for declared in every_declaration(sizes):
            chunk = chunk_of(dict(zip(SUFFIXES, declared, strict=False)))
            # Every seventh pair, another seventh for every bucket: all of them have their turn.
            for wanted in pairs[number % 7 :: 7]:
                merged = settings(max_gap=max_gap, max_nbytes=max_nbytes)
                result = objects.run(protocol(has_tags=objects.has_tags).read(chunk, wanted, merged))
                assert result is not None
                values = [b"".join(value or ()) for value in result.values]
                assert values == [sliced(value, each) for each in wanted], (declared, sizes, wanted)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_known_sizes_need_one_request_for_each_wanted_part(count: int) -> None:
    for sizes, wanted in itertools.product(every_size(count, 3), every_request(4)):
        value = bytes(range(sum(sizes)))
        objects = bucket(value, sizes, has_tags=True)
        chunk = chunk_of(dict(zip(SUFFIXES, sizes, strict=False)))
        objects.run(protocol(has_tags=True).read(chunk, [wanted], settings()))
        owners = [part for part, size in enumerate(sizes) for _ in range(size)]
        needed = {KEY + SUFFIXES[part] for part in sliced(bytes(owners), wanted)}
        assert objects.keys_read == needed
        # A read of no bytes asks the anchor alone, whether there is a chunk.
        assert len(objects.asked) == (len(needed) or 1)
        assert objects.batches == 1


HEADER_MAIN_INDEX = {".header": 3, "": None, ".index": 4}
MAIN_CHECKSUM = {"": None, ".crc32c": 4}


@pytest.mark.parametrize(
    ("declared", "wanted", "suffixes", "batches"),
    [
        (HEADER_MAIN_INDEX, None, [".header", "", ".index"], 1),
        (HEADER_MAIN_INDEX, SuffixByteRequest(4), [".index"], 1),
        (HEADER_MAIN_INDEX, RangeByteRequest(0, 3), [".header"], 1),
        (HEADER_MAIN_INDEX, RangeByteRequest(4, 7), [""], 1),
        (HEADER_MAIN_INDEX, RangeByteRequest(2, 7), [".header", ""], 1),
        (HEADER_MAIN_INDEX, SuffixByteRequest(6), ["", ".index"], 1),
        (HEADER_MAIN_INDEX, OffsetByteRequest(4), ["", ".index"], 1),
        # Where the index begins is known when the main part has answered.
        (HEADER_MAIN_INDEX, RangeByteRequest(4, 11), ["", ".index"], 2),
        (HEADER_MAIN_INDEX, RangeByteRequest(2, 11), [".header", "", ".index"], 2),
        (MAIN_CHECKSUM, None, ["", ".crc32c"], 1),
        (MAIN_CHECKSUM, RangeByteRequest(1, 3), [""], 1),
        (MAIN_CHECKSUM, SuffixByteRequest(2), [".crc32c"], 1),
        (MAIN_CHECKSUM, OffsetByteRequest(2), ["", ".crc32c"], 1),
        ({"": None}, None, [""], 1),
        ({"": None}, SuffixByteRequest(2), [""], 1),
        ({"": None}, RangeByteRequest(1, 100), [""], 1),
    ],
)
def test_common_layouts_cost_one_request_for_each_part(
    declared: dict[str, int | None], wanted: Wanted, suffixes: list[str], batches: int
) -> None:
    sizes = tuple(5 if size is None else size for size in declared.values())
    value = bytes(range(sum(sizes)))
    objects = Objects(has_tags=True)
    for suffix, data in zip(declared, pieces(value, sizes), strict=True):
        objects.put(KEY + suffix, data, Tag(GENERATION, "c", sizes))
    result = objects.run(protocol(has_tags=True).read(chunk_of(declared), [wanted], settings()))
    assert result is not None
    assert b"".join(result.values[0] or ()) == sliced(value, wanted)
    assert sorted(request.key for request in objects.asked if isinstance(request, Get)) == sorted(
        KEY + suffix for suffix in suffixes
    )
    assert objects.count(Head) == 0
    assert objects.batches == batches


# --- cutting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_parts_of_every_chunk_have_their_sizes(count: int) -> None:
    for sizes in every_size(count, 5):
        for declared in every_declaration(sizes):
            if declared.count(None) > 1:
                continue
            parts = chunk_of(dict(zip(SUFFIXES, declared, strict=False))).parts
            value = bytes(range(sum(sizes)))
            cut = [value[span.start : span.stop] for span in plan_split(parts, len(value), KEY)]
            assert cut == pieces(value, sizes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_chunk_of_a_wrong_size_is_refused_with_both_sizes(count: int) -> None:
    for sizes, nbytes in itertools.product(every_size(count, 4), range(7)):
        for declared in every_declaration(sizes):
            parts = chunk_of(dict(zip(SUFFIXES, declared, strict=False))).parts
            fixed = sum(size for size in declared if size is not None)
            fits = nbytes == fixed if None not in declared else nbytes >= fixed
            if declared.count(None) > 1 or fits:
                continue
            with pytest.raises(ChunkSizeError) as caught:
                plan_split(parts, nbytes, KEY)
            assert caught.value.chunk_key == KEY
            assert caught.value.found == nbytes
            assert caught.value.expected == (f"at least {fixed}" if None in declared else f"{fixed}")


# --- bytes in several buffers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", list(itertools.product(range(3), repeat=3)))
def test_every_range_of_a_chain_has_the_bytes_of_the_joined_buffers(sizes: tuple[int, ...]) -> None:
    joined = bytes(range(1, sum(sizes) + 1))
    chain = BufferChain(tuple(map(memoryview, pieces(joined, sizes))))
    assert chain.nbytes == len(joined)
    assert bytes(chain) == bytes(memoryview(chain)) == b"".join([chain]) == joined
    for start, stop in itertools.product([None, *range(-8, 8)], repeat=2):
        taken = chain[start:stop]
        assert bytes(taken) == joined[start:stop]
        assert taken.nbytes == len(joined[start:stop])
        assert all(piece.nbytes for piece in taken.pieces)


def test_a_range_of_a_chain_is_not_a_copy() -> None:
    buffers = [bytearray(b"abc"), bytearray(b"def")]
    taken = BufferChain(tuple(map(memoryview, buffers)))[2:5]
    buffers[0][2], buffers[1][0] = ord("x"), ord("y")
    assert bytes(taken) == b"xye"
