"""Find the programs of the matrix; those that the extra `test` does not have are installed once into the user's cache.

What cannot be installed raises `MissingError`, which says so in one line.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.readers import node

FOLDER = Path(__file__).parent
INSTALL_SECONDS = 300
IMAGEJ = "1.54p"
# In a command: the folder that the program writes to.
OUT = "{OUT}"


class MissingError(Exception):
    """A program of the matrix is not installed, and could not be installed."""


def environment() -> dict[str, str]:
    """Return the variables of a program's process, without those that would let it find this package or plugins."""
    left_out = ("PYTHONPATH", "HDF5_PLUGIN_PATH", "COVERAGE_PROCESS_START")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def python(program: str, requirement: str | None) -> list[str]:
    """Return the command for a program of Python, for which pip installs a requirement into the cache."""
    script = [sys.executable, "-P", "-W", "ignore", str(FOLDER / "programs.py"), program, OUT]
    return script if requirement is None else [*script, str(_pip(requirement))]


def _pip(requirement: str) -> Path:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    name = f"{requirement.replace('==', '-')}-python{sys.version_info.major}.{sys.version_info.minor}"
    return _cached(name, [*pip, "--only-binary=:all:", "--target", OUT, requirement])


def zarrita() -> list[str]:
    """Return the command for zarrita, which the conformance kit installs."""
    try:
        program, kit = node.command()
    except node.NoNodeError as missing:
        raise MissingError(str(missing)) from missing
    return [program, str(FOLDER / "reader.mjs"), OUT, str(Path(kit).parent)]


def imagej() -> list[str]:
    """Return the command for ImageJ, which Maven downloads."""
    java = shutil.which("java")
    if java is None:
        raise MissingError("ImageJ was left out: it needs java")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"
    artifact = [f"-Dartifact=net.imagej:ij:{IMAGEJ}", f"-DoutputDirectory={OUT}"]
    folder = _cached(f"imagej-{IMAGEJ}", ["mvn", "--quiet", "--batch-mode", copy, *artifact])
    jar = folder / f"ij-{IMAGEJ}.jar"
    return [java, "-Djava.awt.headless=true", "-cp", str(jar), str(FOLDER / "Reader.java"), OUT]


def _cached(name: str, command: list[str]) -> Path:
    """Return a folder of the cache that a command fills, once."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parts-store"
    ready = root / name
    if ready.exists():
        return ready
    root.mkdir(parents=True, exist_ok=True)
    # Made beside its place and moved there, so that an interrupted installation leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(prefix="installing-", dir=root) as made:
        target = Path(made) / "installed"
        filled = [argument.replace(OUT, str(target)) for argument in command]
        try:
            subprocess.run(filled, capture_output=True, check=True, timeout=INSTALL_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingError(f"{name} was left out: {Path(command[0]).name} could not install it") from error
        try:
            target.rename(ready)
        except OSError:
            # Another process was faster.
            if not ready.exists():
                raise
    return ready
