"""All that is mended in stock fairseq; each module says which versions need it."""
