"""The program that makes the arrays of the kit. It uses neither zarr nor parts_store."""
