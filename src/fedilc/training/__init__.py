"""One run: its specification, its loop, its callbacks and its result."""
