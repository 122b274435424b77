"""Backends: obstore, local disks, Icechunk sessions. They translate requests, responses and errors."""
