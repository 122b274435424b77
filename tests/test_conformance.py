"""The conformance kit: its files are what its generator writes, our readers pass it, and a wrong reader does not."""

import io
import json
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from numpy.typing import NDArray

from conformance import make
from conformance.__main__ import main
from conformance.cases import DATA, FOLDER, MANIFEST, Case, load_cases
from conformance.generator.arrays import Made
from conformance.readers import minimal, node, ours, protocol
from conformance.runner import Answer, Result, judge, run_batch, run_each, table

CASES = load_cases()
ROOT = FOLDER.parent
# How TIFF and HDF5 files start.
FILES = (b"II", b"\x89H")
type Read = Callable[[Path, str], NDArray[Any]]


def failed(results: list[Result]) -> dict[str, str]:
    return {each.case.name: each.problem for each in results if each.problem is not None}


def run_here(read: Read, folder: Path, cases: list[Case] = CASES) -> list[Result]:
    """Run a reader in this process, as a batch does it in its own."""
    results = []
    for case in cases:
        written = folder / "out.npy"
        written.unlink(missing_ok=True)
        said = protocol.answer(read, str(case.folder), case.array, str(written))
        # Our readers name every error.
        name = None if said["ok"] else said["class"] or "no name"
        answer = Answer(said["ok"], name, said.get("message", ""))
        results.append(judge(case, answer, written))
    return results


# --- the data -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> list[Made]:
    return list(make.all_cases())


def test_the_generator_writes_the_stored_files_byte_for_byte(made: list[Made]) -> None:
    files = {path: data for each in made for path, data in make.files_of(each).items()}
    stored = {path.relative_to(FOLDER).as_posix() for path in (FOLDER / DATA).rglob("*") if path.is_file()}
    assert stored == files.keys()
    versioned = {f"{DATA}/{each.name}/{key}" for each in made for key in each.versioned}
    assert len(versioned) == 10
    assert [path for path in files if path not in versioned and (FOLDER / path).read_bytes() != files[path]] == []
    assert (FOLDER / MANIFEST).read_bytes() == make.manifest(made)


def test_the_generator_uses_neither_zarr_nor_this_package() -> None:
    sources = [FOLDER / "make.py", FOLDER / "cases.py", FOLDER / "runner.py", *(FOLDER / "generator").glob("*.py")]
    assert len(sources) > 8
    for source in [*sources, FOLDER / "readers/minimal.py", FOLDER / "readers/protocol.py"]:
        assert (
            re.findall(r"^\s*(?:from|import) +(?:zarr|parts_store|numcodecs)\b", source.read_text(), re.MULTILINE) == []
        )


def test_the_readme_explains_every_error() -> None:
    readme = (FOLDER / "README.md").read_text()
    manifest = json.loads((FOLDER / MANIFEST).read_text())
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", readme, re.MULTILINE)).items() >= manifest["errors"].items()
    assert {case.error for case in CASES} - {None} == manifest["errors"].keys()


def test_every_variant_is_in_the_kit() -> None:
    features = Counter(feature for case in CASES for feature in case.features)
    expected = {"concat-parts", "pad", "offset", "packbits", "sharding", "index-start", "edge-chunks", "missing-chunks"}
    expected |= {"chunk-keys", "gzip", "zstd", "crc32c", "groups", "consolidated", "shard-file", "incomplete-document"}
    assert {name for name in expected if features[name] < 2} == set()
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if "shard-file" in case.features and case.error is None])
def test_shard_files_are_files_of_their_format(case: Case) -> None:
    document = json.loads((case.folder / "zarr.json").read_text())
    shard = document["chunk_grid"]["configuration"]["chunk_shape"]
    expected = case.expected_values()
    starts = {path: path.read_bytes()[:2] for path in (case.folder / "c").rglob("*") if path.is_file()}
    readers = {path: {b"II": read_tiff, b"\x89H": read_hdf5}[start] for path, start in starts.items() if start in FILES}
    # The index of a shard, if it is an object of its own, and the shard that other software has written.
    assert {path.suffix or path.name for path in starts.keys() - readers.keys()} in ({".index"}, {"1"}, set())
    assert readers
    for path, read in readers.items():
        at = [int(each) for each in path.relative_to(case.folder / "c").with_suffix("").parts]
        part = expected[tuple(slice(i * n, i * n + n) for i, n in zip(at, shard, strict=True))]
        np.testing.assert_array_equal(read(path), part)


def read_tiff(path: Path) -> NDArray[Any]:
    with tifffile.TiffFile(path) as file:
        pages = [page.asarray() for page in file.pages]
    return pages[0] if len(pages) == 1 else np.stack(pages)


def read_hdf5(path: Path) -> NDArray[Any]:
    """Return the values of a file, after a comparison of its chunks with the index, which is beside it or in it."""
    with h5py.File(path) as file:
        values = np.asarray(file["data"])
        chunks: list[Any] = []
        file["data"].id.chunk_iter(chunks.append)
    index = path.with_suffix(".index").read_bytes() if path.suffix else path.read_bytes()[-68:]
    rows = set(struct.iter_unpack("<QQ", index[:-4])) - {(2**64 - 1, 2**64 - 1)}
    assert rows == {(each.byte_offset, each.size) for each in chunks}
    return values


def test_the_first_examples_are_tiff_files() -> None:
    for name in ("pad", "offset"):
        (case,) = load_cases(only=[f"examples/{name}-tiff"])
        stored = (case.folder / "c/0/0").read_bytes()
        np.testing.assert_array_equal(tifffile.imread(io.BytesIO(stored)), case.expected_values())


# --- the readers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("read", [ours.read_with_zarr, ours.read_with_pipeline, minimal.read])
def test_our_readers_pass(read: Read, tmp_path: Path) -> None:
    assert failed(run_here(read, tmp_path)) == {}


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec:zarr.errors.ZarrUserWarning")
def test_arrays_without_parts_are_read_by_zarr_alone(tmp_path: Path) -> None:
    def read(folder: Path, array: str) -> NDArray[Any]:
        return np.asarray(zarr.open_array(folder, path=array, mode="r")[...])

    extended = {"concat-parts", "incomplete-document"}
    cases = [case for case in CASES if case.error is None and not case.features & extended]
    assert len(cases) > 35
    assert failed(run_here(read, tmp_path, cases)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ours", "minimal"])
def test_our_readers_pass_as_programs(module: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", f"conformance.readers.{module}"]
    assert failed(run_batch(command, CASES, timeout=600)) == {}
    sampled = [case for number, case in enumerate(CASES) if number % 25 == 0]
    assert {case.error is None for case in sampled} == {True, False}
    assert failed(run_each(command, sampled, timeout=300)) == {}


@pytest.mark.slow
def test_the_reader_in_javascript_passes() -> None:
    try:
        command = node.command()
    except node.NoNodeError as missing:
        pytest.skip(str(missing))
    assert failed(run_batch(command, CASES, timeout=600)) == {}
    assert failed(run_each(command, CASES[::25], timeout=300)) == {}


def test_a_missing_node_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(node.NoNodeError, match=r"^the reader in JavaScript was left out: it needs node and npm$"):
        node.command()


# --- wrong readers --------------------------------------------------------------------------------------------------

AT_END = {"pad/end", "pad/end-zeros", "pad/both", "pad/before-zstd", "pad/keys-v2", "offset/header-part"}
AT_END |= {"sharding/pad-around"}
SIGNED = {"packbits/int16-5-bits", "packbits/int32-middle-bits", "packbits/int8-1-bit"}
FILLED = {"concat-parts/missing-chunks", "concat-parts/no-chunks", "concat-parts/orphans", "sharding/missing-shard"}
FILLED |= {"concat-parts/data-type-bool", "concat-parts/data-type-float32", "packbits/gzip"}
FILLED |= {"pad/edge-and-missing", "offset/edge-and-missing"}


def wrong_reader(replace: str, by: str) -> Read:
    """Return the minimal reader with another text in place of a text of its source."""
    source = (FOLDER / "readers/minimal.py").read_text()
    assert source.count(replace) == 1
    names: dict[str, Any] = {"__name__": "wrong"}
    exec(compile(source.replace(replace, by), "wrong.py", "exec"), names)
    read: Read = names["read"]
    return read


def several_parts() -> Iterator[str]:
    """Yield the readable arrays with chunks whose parts give other bytes in another order."""
    for case in CASES:
        document = json.loads((case.folder / case.array / "zarr.json").read_text())
        if case.error is None and document.get("storage_transformers"):
            yield case.name


def test_a_reader_that_joins_parts_by_name_fails_the_right_cases(tmp_path: Path) -> None:
    by_name = 'b"".join(pieces[i] for i in sorted(range(len(parts)), key=lambda i: parts[i]["key_suffix"]))'
    read = wrong_reader('b"".join(pieces)', by_name)
    wrong = failed(run_here(read, tmp_path)).keys()
    assert "concat-parts/order-of-the-list" in wrong
    assert "sharding/header-and-index" in wrong
    assert {name for name in wrong if not name.startswith("damaged/")} <= set(several_parts())
    # In these, the order of the list is that of the names.
    assert not {"concat-parts/main-first", "sharding/index-end", "concat-parts/one-part"} & wrong


def test_a_reader_that_takes_a_missing_part_for_a_missing_chunk_fails_the_right_cases(tmp_path: Path) -> None:
    lenient = "if not all(path.is_file() for path in paths):"
    read = wrong_reader("if not paths[parts.index(anchor)].is_file():", lenient)
    expected = {case.name for case in CASES if case.error == "missing-part"}
    assert len(expected) == 7
    assert failed(run_here(read, tmp_path)).keys() == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("replace", "by", "expected"),
    [
        ('"wrong-size"', '"bad-data"', lambda case: case.error == "wrong-size"),
        ('"end" else data[size:]', '"never" else data[size:]', lambda case: case.name in AT_END),
        ('if dtype.kind == "i"', "if False", lambda case: case.name in SIGNED),
        (
            "np.full(shape, fill, dtype)\n    for at",
            "np.zeros(shape, dtype)\n    for at",
            lambda case: case.name in FILLED,
        ),
    ],
    ids=["class", "end", "sign", "fill"],
)
def test_wrong_readers_fail_the_right_cases(
    replace: str,
    by: str,
    expected: Callable[[Case], bool],
    tmp_path: Path,
) -> None:
    read = wrong_reader(replace, by)
    assert failed(run_here(read, tmp_path)).keys() == {case.name for case in CASES if expected(case)}


# --- the runner -----------------------------------------------------------------------------------------------------


def write_reader(folder: Path, text: str) -> list[str]:
    path = folder / "reader.py"
    path.write_text(text)
    return [sys.executable, str(path)]


@pytest.mark.slow
def test_the_runner_reports_readers_that_write_nothing_or_never_end(tmp_path: Path) -> None:
    (case,) = load_cases(only=["pad/start-zeros"])
    (result,) = run_each(write_reader(tmp_path, "pass"), [case], timeout=300)
    assert "no .npy file was written" in (result.problem or "")
    (result,) = run_each(write_reader(tmp_path, "import time; time.sleep(60)"), [case], timeout=0.5)
    assert result.problem == "no answer: not within 0.5 s"
    text = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    (result,) = run_each(write_reader(tmp_path, text), load_cases(only=["damaged/missing-tail"]), timeout=300)
    assert result.problem == "no answer: ended by signal 9"
    assert [each.problem for each in run_batch(write_reader(tmp_path, "print('?')"), [case] * 2, timeout=300)] == [
        "no answer: not a JSON object with `ok`: ?",
        "no answer: the reader ended with exit code 0: ",
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda values: values.astype("int16"), "data type int16 in place of uint16"),
        (lambda values: values.T, "shape (6, 4) in place of (4, 6)"),
        (lambda values: values + np.eye(4, 6, 1, "uint16"), "4 wrong values, the first at (0, 1): "),
        (lambda values: values.astype(">u2"), None),
    ],
)
def test_the_runner_compares_shape_data_type_and_values(
    change: Callable[[Any], Any], problem: str | None, tmp_path: Path
) -> None:
    (case,) = load_cases(only=["pad/start-zeros"])
    (result,) = run_here(lambda folder, array: np.asarray(change(case.expected_values())), tmp_path, [case])
    assert (result.problem or "").startswith(problem or "")
    assert (result.problem is None) == (problem is None)


def test_the_class_of_an_error_counts_if_the_reader_names_one(tmp_path: Path) -> None:
    cases = load_cases(only=["damaged/missing-tail"])
    silent = "import sys; sys.exit('it does not work')"
    assert failed(run_each(write_reader(tmp_path, silent), cases, timeout=300)) == {}
    other = "import sys; sys.exit('it does not work\\nclass: wrong-size')"
    (result,) = run_each(write_reader(tmp_path, other), cases, timeout=300)
    assert result.problem == "the error wrong-size in place of missing-part: it does not work"


def test_the_program_prints_a_table_and_tells_by_its_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    reader = [sys.executable, "-m", "conformance.readers.minimal"]
    options = ["--batch", "--only", "pad/", "--without", "zstd"]
    assert main([*options, *reader]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^pad/start-zeros +ok$", printed, re.MULTILINE)
    assert "pad/before-zstd" not in printed
    assert re.search(r"^all +12 +12$", printed, re.MULTILINE)
    assert main([*options, "--short", *write_reader(tmp_path, "import sys; sys.exit(3)")]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^pad/end +FAILED  no answer: the reader ended with exit code 3", printed, re.MULTILINE)
    assert re.search(r"^all +12 +0$", printed, re.MULTILINE)
    with pytest.raises(SystemExit):
        main(["--only", "nothing/", "true"])


def test_the_table_of_results_names_what_a_failed_case_checks() -> None:
    (case,) = load_cases(only=["concat-parts/order-of-the-list"])
    assert case.checks in table([Result(case, "24 wrong values")])
