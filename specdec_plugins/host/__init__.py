"""Repairs of stock fairseq; each module says which versions need them."""
