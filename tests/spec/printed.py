"""The examples of the specifications of `offset` and `pad`, as they are printed."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Printed:
    """The three examples of a specification, and the member that has the bytes of the header."""

    member: str
    # Chunks that are TIFF files.
    first: str
    # Chunks with a header of 16 bytes, compressed by gzip.
    second: str
    # Chunks that are blocks of N5.
    third: str


OFFSET_FIRST: Final = """{
  "codecs": [
    {
      "name": "bytes",
      "configuration": {
        "endian": "little"
      }
    },
    {
      "name": "offset",
      "configuration": {
        "offset": 110,
        "prefix": "SUkqAAgAAAAIAAABAwABAAAAAAEAAAEBAwABAAAAAAEAAAIBAwABAAAAEAAAAAMBAwABAAAAAQAAAAYBAwABAAAAAQAAABEBBAABAAAAbgAAABYBAwABAAAAAAEAABcBBAABAAAAAAACAAAAAAA="
      }
    }
  ]
}"""  # noqa: E501
OFFSET_SECOND: Final = """{
  "codecs": [
    { "name": "gzip" },
    {
      "name": "offset",
      "configuration": {
        "offset": 16,
        "prefix": "TVlfQ1VTVE9NX0hFQURFUg=="
      }
    }
  ]
}"""
OFFSET_THIRD: Final = """{
  "zarr_format": 3,
  "node_type": "array",
  "shape": [1024, 1024],
  "data_type": "uint16",
  "chunk_grid": {
    "name": "regular",
    "configuration": {
      "chunk_shape": [64, 64]
    }
  },
  "chunk_key_encoding": {
    "name": "v2",
    "configuration": {
      "separator": "/"
    }
  },
  "codecs": [
    {
      "name": "bytes",
      "configuration": {
        "endian": "big"
      }
    },
    {
      "name": "zstd",
      "configuration": {
        "level": 3
      }
    },
    {
      "name": "offset",
      "configuration": {
        "offset": 12,
        "prefix": "AAAAAgAAAEAAAABA"
      }
    }
  ],
  "fill_value": 0
}"""
PAD_FIRST: Final = """{
  "codecs": [
    {
      "name": "bytes",
      "configuration": {
        "endian": "little"
      }
    },
    {
      "name": "pad",
      "configuration": {
        "location": "start",
        "nbytes": 110,
        "padding": "SUkqAAgAAAAIAAABAwABAAAAAAEAAAEBAwABAAAAAAEAAAIBAwABAAAAEAAAAAMBAwABAAAAAQAAAAYBAwABAAAAAQAAABEBBAABAAAAbgAAABYBAwABAAAAAAEAABcBBAABAAAAAAACAAAAAAA="
      }
    }
  ]
}"""  # noqa: E501
PAD_SECOND: Final = """{
  "codecs": [
    { "name": "gzip" },
    {
      "name": "pad",
      "configuration": {
        "location": "start",
        "nbytes": 16,
        "padding": "TVlfQ1VTVE9NX0hFQURFUg=="
      }
    }
  ]
}"""
PAD_THIRD: Final = """{
  "zarr_format": 3,
  "node_type": "array",
  "shape": [1024, 1024],
  "data_type": "uint16",
  "chunk_grid": {
    "name": "regular",
    "configuration": {
      "chunk_shape": [64, 64]
    }
  },
  "chunk_key_encoding": {
    "name": "v2",
    "configuration": {
      "separator": "/"
    }
  },
  "codecs": [
    {
      "name": "bytes",
      "configuration": {
        "endian": "big"
      }
    },
    { "name": "zstd" },
    {
      "name": "pad",
      "configuration": {
        "location": "start",
        "nbytes": 12
      }
    }
  ],
  "fill_value": 0
}"""
PRINTED: Final = {
    "offset": Printed("prefix", OFFSET_FIRST, OFFSET_SECOND, OFFSET_THIRD),
    "pad": Printed("padding", PAD_FIRST, PAD_SECOND, PAD_THIRD),
}
