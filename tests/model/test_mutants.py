"""Every mutant fits the code, the deep ones included: `make check` sees in a moment that a change left one behind."""

import ast

import pytest

from tests.model.mutant import Mutant
from tests.model.mutants import DEEP_MUTANTS, MUTANTS
from tests.model.patched import SOURCES


@pytest.mark.parametrize("mutant", [*MUTANTS, *DEEP_MUTANTS], ids=lambda each: each.name)
def test_a_mutant_changes_the_code_as_it_is(mutant: Mutant) -> None:
    assert mutant.scenario.patches
    for patch in mutant.scenario.patches:
        tree = ast.parse(SOURCES[patch.module].read_text(encoding="utf-8"))
        before = ast.unparse(tree)
        patch.apply(tree)
        assert ast.unparse(tree) != before
