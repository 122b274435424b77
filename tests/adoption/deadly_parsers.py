"""Parsers that end or block the process they run in, for one file of many."""

import os
import re
import signal
from dataclasses import dataclass
from typing import Any

from virtualizarr.manifests import ManifestStore

from parts_store.adoption.parsers import HDF5

BAD = "bad"
"""The beginning of the names of files that are deadly."""


@dataclass(frozen=True)
class Deadly:
    """The parser of HDF5, except for files with a name that says otherwise."""

    how: str

    def __call__(self, url: str, registry: Any) -> ManifestStore:
        """Parse a file, or end the process."""
        if url.rpartition("/")[2].startswith(BAD):
            match self.how:
                case "exit":
                    os._exit(7)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    re.match(r"(a+)+$", "a" * 60 + "b")
        return HDF5()(url, registry)
