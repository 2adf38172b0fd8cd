"""Files, streams and errors, as every command treats them."""
