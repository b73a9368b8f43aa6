"""The verbs of the command line, one module for each noun; `cli.app` registers them."""
