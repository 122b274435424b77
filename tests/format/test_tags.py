"""The tag of a write: what was written comes back, and what was not is none."""

import itertools
import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parts_store.format.tags import Mode, Tag

GENERATION = "0123456789abcdef" * 2
generations = st.text("0123456789abcdef", min_size=32, max_size=32)
modes: st.SearchStrategy[Mode] = st.sampled_from(["c", "s", "u", "m"])
sizes = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=64).map(tuple)


@given(generation=generations, mode=modes, sizes=sizes)
@example(GENERATION, "c", (0,))
@example(GENERATION, "s", (2**63 - 1,) * 64)
def test_a_tag_comes_back_from_its_text(generation: str, mode: Mode, sizes: tuple[int, ...]) -> None:
    tag = Tag(generation, mode, sizes)
    assert Tag.parse(str(tag)) == tag


def test_the_text_is_the_one_of_the_protocol() -> None:
    assert str(Tag(GENERATION, "c", (64, 1000, 0))) == f"1;{GENERATION};c;64,1000,0"
    assert Tag.parse(f"1;{GENERATION};s;7") == Tag(GENERATION, "s", (7,))


def test_longest_tag_is_ascii_and_short_enough() -> None:
    text = str(Tag(GENERATION, "s", (2**63 - 1,) * 64))
    assert text.isascii()
    # 2 KB is what S3 allows for all user metadata together.
    assert len(text) < 2048


# Tests below change every character of a tag.
@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "1", f"2;{GENERATION};c;1", f"1;{GENERATION};c", f"1;{GENERATION};cs;1", f"1;{GENERATION};c;1;1"),
        *(f"1;{GENERATION};c;1_000", f"1;{GENERATION.upper()};c;1", f"1,{GENERATION},c,1", f"01;{GENERATION};c;1"),
        *(f"1;{GENERATION};c;{'9' * 5000}", f"1;{GENERATION};c;{','.join('1' * 65)}"),
    ],
)
def test_any_other_text_is_no_tag(text: str | None) -> None:
    assert Tag.parse(text) is None


def is_tag(text: str) -> bool:
    """Whether the protocol's sentence allows the text, taken apart by hand."""
    fields = text.split(";")
    if len(fields) != 4 or fields[0] != "1" or fields[2] not in ("c", "s", "u", "m"):
        return False
    numbers = fields[3].split(",")
    hexadecimal = len(fields[1]) == 32 and set(fields[1]) <= set("0123456789abcdef")
    return hexadecimal and all(number and set(number) <= set(string.digits) for number in numbers)


def test_changing_a_character_gives_another_tag_or_none() -> None:
    tag = Tag(GENERATION, "c", (10, 2))
    text = str(tag)
    letters = "0123456789abcdefgsumxAF;,.- \n\0\xb2\u0661"
    for at, letter in itertools.product(range(len(text) + 1), letters):
        for changed in (text[:at] + letter + text[at + 1 :], text[:at] + letter + text[at:]):
            parsed = Tag.parse(changed)
            assert (parsed is not None) == is_tag(changed), changed
            if parsed is not None and changed != text:
                # A zero in front of a size is the one thing that means nothing.
                assert parsed != tag or re.search(r"[;,]0[0-9]", changed), changed


@given(st.text(max_size=60) | st.text("1;csum,0aF", max_size=60))
def test_any_text_is_a_tag_or_none(text: str) -> None:
    assert (Tag.parse(text) is not None) == is_tag(text)
