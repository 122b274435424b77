"""VirtualiZarr is needed only by `parts_store.manifests`, which names the extra that installs it."""

import subprocess
import sys

import pytest

ABSENT = "import sys; sys.modules['virtualizarr'] = None\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", ["ps.manifests", "ps.PartsStore.from_url('memory://').manifest('a')"])
def test_what_is_missing_is_named(use: str) -> None:
    program = f"{ABSENT}import parts_store as ps\ntry:\n    {use}\nexcept ImportError as error:\n    print(error)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "pip install 'parts_store[virtual]'" in ran.stdout


def test_importing_parts_store_imports_no_virtualizarr_or_xarray() -> None:
    program = "import sys, parts_store; print(sorted({'virtualizarr', 'xarray', 'obspec_utils'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
