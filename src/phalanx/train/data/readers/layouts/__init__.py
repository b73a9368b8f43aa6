"""How files of each format are laid out, without torch: columns, Parquet, tar shards, text."""
