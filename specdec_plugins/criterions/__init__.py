"""Criterions, which the package registers; fairseq does not import them by itself."""
