"""Speed, side by side with all peers in one run: `python -m benchmarks.speed`."""
