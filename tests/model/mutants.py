"""All mutants: the source with one mistake each, and a scenario in which the model sees it.

A mutant names a function and replaces an expression or some statements of it, as they are in the syntax tree: it does
not depend on the module, the layout of the source or its comments. If the code does not occur any more, the mutant has
to follow it. A mutant that is caught shows that the model would see such a mistake.
"""

from tests.model.local_disk_mutants import LOCAL_DISKS
from tests.model.reading_mutants import READERS
from tests.model.registration_mutants import DEEP_REGISTRATION_MUTANTS, EQUAL_ETAGS, LEFTOVERS, STALLS, UPKEEP
from tests.model.writing_mutants import EMBEDDING, FULL_LEVEL, MERGES, WRITERS

__all__ = ["DEEP_MUTANTS", "MUTANTS"]

MUTANTS = [
    *(*READERS, *WRITERS, *EQUAL_ETAGS, *LEFTOVERS, *STALLS, *FULL_LEVEL, *LOCAL_DISKS, *UPKEEP, *EMBEDDING, *MERGES)
]

DEEP_MUTANTS = DEEP_REGISTRATION_MUTANTS
