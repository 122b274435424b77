"""Write the tables into docs/interoperability.md: `python -m tests.interoperability`."""

from tests.interoperability.page import PAGE, written

PAGE.write_text(written())
