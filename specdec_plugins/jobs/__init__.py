"""Long work in folders: it can be stopped anywhere, and the same command goes on with it."""
