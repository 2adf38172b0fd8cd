"""Speculation against what a user would pick otherwise, each system in a process of its own."""
