"""Each program of the matrix reads or refuses each form of an array, as docs/interoperability.md says."""

import re
from pathlib import Path

import pytest

from tests.interoperability.installed import MissingError
from tests.interoperability.matrix import PROGRAMS, READS, REASONS, SHOWS_FILL_VALUE, expected, run, write_rows
from tests.interoperability.page import PAGE, written
from tests.interoperability.rows import ROWS


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("rows").resolve())


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_reads_what_the_page_says(name: str, rows: dict[str, Path]) -> None:
    try:
        cells = run(name, rows)
    except MissingError as missing:
        pytest.skip(str(missing))
    wanted = {row.name: expected(name, row) for row in ROWS if PROGRAMS[name].applies_to(row)}
    unexpected = {where: cell for where, cell in cells.items() if cell.outcome != wanted[where]}
    assert not unexpected
    assert cells.keys() == wanted.keys()
    refused = [cell.why for cell in cells.values() if cell.outcome == "refuses"]
    assert bool(refused) == (name in REASONS)
    assert [why for why in refused if re.search(REASONS[name], why) is None] == []


def test_tables_of_the_page_are_the_expected_outcomes() -> None:
    assert PAGE.read_text() == written(), "run `python -m tests.interoperability`"


def test_expected_outcomes_name_forms_programs_and_compressions_that_exist() -> None:
    compressions: dict[str, set[str]] = {}
    for row in ROWS:
        compressions.setdefault(row.form, set()).add(row.compression)
    assert READS.keys() == compressions.keys()
    for form, reads in READS.items():
        assert {name for programs in reads for name in programs.split(", ")} <= PROGRAMS.keys()
        assert {name for read in reads.values() for name in read.split(", ")} <= compressions[form]
    for name, forms in SHOWS_FILL_VALUE.items():
        assert name in PROGRAMS
        assert set(forms) <= compressions.keys()


def test_the_readme_counts_the_cells() -> None:
    cells = sum(program.applies_to(row) for program in PROGRAMS.values() for row in ROWS)
    readme = Path(__file__).parent.parent.parent / "README.md"
    assert f"[{cells} cases are tested]" in " ".join(readme.read_text().split())
