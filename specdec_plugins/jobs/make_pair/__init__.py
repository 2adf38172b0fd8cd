"""A pair made from a verifier and text of its source language, in stages."""
