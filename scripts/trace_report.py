#!/usr/bin/env python3
"""``specdec-trace-report`` of a clone: see ``specdec_plugins/cli/trace_report.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("trace_report")
