"""Checkpoints: read without running anything of them, told apart by role, exported."""
