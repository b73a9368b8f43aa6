"""How files of each format are laid out: columns of an index, Parquet, tar shards, TFRecord, text.

`columns` is the index's own format; `parquet`, `tar`, `tfrecord` and `text` find the offsets of samples in
a file. A layout knows no index, no cache and no network, needs no torch, and raises DataCorrupt with the
file's name.
"""
