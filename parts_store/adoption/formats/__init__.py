"""The file formats that can be adopted: one module or package per format."""
