"""Criterions; fairseq does not import these by itself."""

from specdec_plugins.criterions import acceptance_loss, glat_loss

__all__ = ["acceptance_loss", "glat_loss"]
