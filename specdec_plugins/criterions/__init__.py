"""Criterions; fairseq does not import these by itself."""

from specdec_plugins.criterions import glat_loss

__all__ = ["glat_loss"]
