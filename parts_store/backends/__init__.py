"""Backends: obstore, local disks, Icechunk sessions. They translate requests, responses and errors."""

import atexit

from parts_store._compat.foreign_threads import wait_for_foreign_threads

atexit.register(wait_for_foreign_threads)
