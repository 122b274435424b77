"""Run the steps of the demo one after the other, and write the page about them."""

import time
from collections.abc import Callable
from pathlib import Path

import icechunk

from parts_store.examples.demo.eight_writers import show_eight_writers
from parts_store.examples.demo.image_shards import show_tiff_shards
from parts_store.examples.demo.killed_writer import show_killed_writer
from parts_store.examples.demo.netcdf_archive import show_netcdf_archive
from parts_store.examples.demo.outcome import Demo, Outcome, Step
from parts_store.examples.demo.output_folder import PAGE, prepare
from parts_store.examples.demo.page import page
from parts_store.examples.demo.request_counts import show_request_counts
from parts_store.examples.demo.versions import show_versions

STEPS: tuple[tuple[str, Callable[[Path], Outcome]], ...] = (
    ("A Zarr array whose shards are TIFF files", show_tiff_shards),
    ("A writer killed in the middle of an overwrite", show_killed_writer),
    ("Eight writers on one shard", show_eight_writers),
    ("A year of netCDF files, without a copy", show_netcdf_archive),
    ("A commit, a change, and the difference", show_versions),
    ("Requests and times beside plain zarr", show_request_counts),
)


def run_steps(folder: Path, say: Callable[[str], object]) -> Demo:
    """Run all steps in a folder, write the page, and return what the steps found."""
    # Hide the warning that concurrent commits on a local disk are unsafe: this is the only process that commits.
    icechunk.set_logs_filter("error")
    place = prepare(folder)
    steps: list[Step] = []
    for number, (title, show) in enumerate(STEPS, start=1):
        say(f"{number}/{len(STEPS)}  {title} ...")
        start = time.perf_counter()
        try:
            outcome = show(place)
        except BaseException:
            # The error has a line of its own.
            say("\n")
            raise
        seconds = time.perf_counter() - start
        steps.append(Step(title, outcome, seconds))
        say(f" {seconds:.1f} s\n     {'ok' if outcome.is_right else 'WRONG'}: {outcome.result}\n")
    demo = Demo(place / PAGE, steps)
    demo.page.write_text(page(demo), encoding="utf-8")
    return demo
