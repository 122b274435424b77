"""Why a request is made, in the words that `explain` prints."""

from typing import Final

DATA: Final = "data"
INDEX: Final = "index of the shard"
