"""Commands and services in tests: how they are run, watched and killed."""
