"""Verifiers that people have as folders of transformers, read as fairseq's Transformers.

A family is a file: which of a folder's tokens are which, how its text is segmented, and what is
special about its network. All else is common: a family becomes a fairseq Transformer and fairseq
dictionaries in memory, so that there is one network and one loop.
"""
