"""Job files of other tools, as job specs: each key is mapped, dropped with a warning, or refused by line.

`documents` reads a file with the lines of its keys; `rules` holds a table of keys and walks a document by
it, so that no key can be ignored; `commands` understands command lines of launchers; `pods` reads pod
templates; every further module is one format, and `formats` tells which one a file has. All are functions
of text; their problems are those of `Conversion`.
"""
