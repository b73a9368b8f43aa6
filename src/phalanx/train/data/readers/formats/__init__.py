"""The data sets, one module per format: `images`, `parquet`, `tar`, `tfrecord`, `text`.

`decoding` decodes images.

Each is a map-style `Dataset` over an index, opened by `locating.open_index`: a sample by its number, and a
`fingerprint()`. A data set may be forked and pickled, so it shares no file position. It does not shuffle,
shard or draw random numbers.
"""
