"""The training noise."""
