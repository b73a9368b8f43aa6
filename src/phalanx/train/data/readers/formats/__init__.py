"""One module per data format: images, Parquet, tar shards, text, columns."""
