"""Output of ranks as it is stored and searched, as pure functions.

`segments` are bytes as they arrived, `packs` many of them in one file, `grams` the index of a pack,
`levels` and `level_lines` the levels of lines, and `matching` finds lines.
Files and tables are not touched here.
"""
