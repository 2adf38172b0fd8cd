#!/usr/bin/env python3
"""``fairseq-train`` under the name that the published project's commands use."""

from fairseq_cli.train import cli_main

if __name__ == "__main__":
    cli_main()
