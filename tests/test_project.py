"""The files of the project agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)
PINNED = {canonicalize_name(name): version for name, version in PINS.items()}
# The libraries whose private names are imported, and those that may change any name before 1.0.
BOUNDED = {"icechunk", "obstore", "virtualizarr", "xarray", "zarr"}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    found = [Requirement(text) for text in texts]
    return [each for each in found if canonicalize_name(each.name) != canonicalize_name(PROJECT["name"])]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_the_pinned_version_is_within_the_bounds(requirement: Requirement) -> None:
    assert PINNED[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_library_has_a_lower_bound_and_private_names_an_upper_one(requirement: Requirement) -> None:
    operators = {each.operator for each in requirement.specifier}
    assert operators == ({">=", "<"} if requirement.name in BOUNDED else {">="})


def test_pre_commit_runs_the_pinned_version_of_ruff() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    (version,) = re.findall(r"ruff-pre-commit\n(?: *#.*\n)* *rev: v([\d.]+)\n", hooks)
    assert version == PINS["ruff"]


def test_the_citation_names_the_version_and_the_repository() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"\nrepository-code: {PROJECT['urls']['Repository']}\n" in citation


def test_workflow_tests_the_declared_python_versions() -> None:
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    (tested,) = re.findall(r'python-version: \[((?:"[\d.]+", )+"[\d.]+")\]', workflow)
    assert re.findall(r"[\d.]+", tested) == named
    assert f">={named[0]}" == PROJECT["requires-python"]
