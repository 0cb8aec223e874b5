"""The parts of `tests/gpu/accept.py`."""
