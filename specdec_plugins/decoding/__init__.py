"""Drafting, verification, acceptance: everything between source ids and hypotheses."""
