"""Every mutant fits the source, the deep ones included: `make check` sees in a moment that a change left one behind."""

import pytest

from tests.model.mutant import Mutant
from tests.model.mutants import DEEP_MUTANTS, MUTANTS
from tests.model.patched import SOURCES


@pytest.mark.parametrize("mutant", [*MUTANTS, *DEEP_MUTANTS], ids=lambda each: each.name)
def test_a_mutant_changes_the_source_as_it_is(mutant: Mutant) -> None:
    assert mutant.scenario.patches
    for patch in mutant.scenario.patches:
        source = SOURCES[patch.module].read_text(encoding="utf-8")
        assert patch.apply(source) != source
