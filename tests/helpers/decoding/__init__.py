"""Decoding in tests: references, made-up drafters and engines, and comparisons."""
