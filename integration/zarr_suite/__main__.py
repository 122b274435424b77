"""Run zarr's own tests on a PartsStore: `python -m integration.zarr_suite [--only WORDS] [-k NAMES] [--jobs N]`.

There is a run of each pipeline, with chunks as they are and in parts, in memory, on disk and in an Icechunk session.
The tests are those of the installed version of zarr. Exits with 0 if all runs pass, except for what `left_out` lists.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Final

import parts_store
from integration.zarr_suite.left_out import DIMENSIONS, FILES
from tests.package_sources import sources

_MODULE: Final = "zarr.core.codec_pipeline"
_OPTIONS: Final = (
    *("--quiet", "--tb=native", "-rfE", "-pno:cacheprovider", "-pintegration.zarr_suite.plugin"),
    *("--override-ini=addopts=", "--override-ini=log_cli_level=WARNING"),
)


def run_tests(
    run: tuple[str, ...], *, files: tuple[str, ...] = FILES, names: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run tests of zarr in another process, in the folder of its sources.

    Parameters
    ----------
    run
        The pipeline, how chunks are stored, and the place.
    files
        The files of the tests.
    names
        An expression that selects tests, for the option `-k` of pytest.

    Returns
    -------
    subprocess.CompletedProcess
        The process, with the output of pytest.
    """
    (folder,) = sources("zarr", version("zarr")).iterdir()
    # In a run of our pipeline, it is in the place of zarr's fused pipeline.
    pipeline = f"{_MODULE}.{'Batched' if run[0] == 'batched' else 'Fused'}CodecPipeline"
    return subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *_OPTIONS, *files, *([f"-k{names}"] if names else [])],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(Path(parts_store.__file__).parent.parent),
            "ZARR_SUITE": " ".join(run),
            "ZARR_CODEC_PIPELINE__PATH": pipeline,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main() -> int:
    """Run the tests as the arguments of the command ask for."""
    parser = argparse.ArgumentParser(prog="python -m integration.zarr_suite", description=__doc__)
    parser.add_argument("--only", default="", help="words of the runs, for instance 'ours parts session'")
    parser.add_argument("--names", "-k", default="", help="the tests to run, as for pytest")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many runs take place at once")
    arguments = parser.parse_args()
    words = set(arguments.only.split())
    runs = [run for run in product(*DIMENSIONS) if words <= set(run)]
    start = time.monotonic()
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as threads:
        futures = {threads.submit(run_tests, run, names=arguments.names): run for run in runs}
        for future in as_completed(futures):
            ended = future.result()
            if ended.returncode:
                failed += 1
                print(ended.stdout)
            print(f"{' '.join(futures[future]):22} {ended.stdout.strip().splitlines()[-1]}", flush=True)
    print(f"{len(runs)} runs, of which {failed} failed, in {time.monotonic() - start:.0f} seconds")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
