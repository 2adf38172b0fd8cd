"""The service: text over HTTP, by the protocols that clients speak."""
