"""Command lines: parse, call, print."""

from specdec_plugins import register

register()
