"""Private names of other libraries, imported here and nowhere else, one module per library.

A release of that library may move such a name: then this is the place to follow it. `pyproject.toml` has an upper bound
for each of these libraries, and a nightly job installs them without it. Each module says which public name would take
the place of a private one.
"""
