"""Models for tests: small ones, and folders and files of them."""
