"""Command lines: parse, call, print."""

import gc

from specdec_plugins import register

# Hundreds of thousands of objects come with the libraries, and all of them stay: to search them for
# garbage, now and again, would take a fifth of the time in which a command starts.
gc.disable()
register()
gc.freeze()
gc.enable()
