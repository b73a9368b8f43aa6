"""Output of ranks as it is stored and searched, as pure functions.

`segments` are bytes as they arrived, `packs` many of them in one file, `grams` the index of a pack,
`levels` and `level_lines` the levels of lines, `matching` finds lines, and `missing` counts what cannot
be read. `lines` joins segments to lines, and `export` writes these as other log stores take them.
Files and tables are not touched here.
"""
