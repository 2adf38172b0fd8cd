"""Timed comparisons of controllers: systems, alternating runs, ratios, tables and plots."""
