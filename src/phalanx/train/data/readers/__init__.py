"""Data sets that can be read at random, checked, and fetched through a cache on the node.

Read `formats/` first (the data sets `ImageFolder`, `TextFile`, `Parquet`, `TarShards`, `TFRecords`), then
`index` (files and samples by number), `locating` and `scanning` (where an index comes from), `open_shards`,
`sources`, `cache` and `remote` (how bytes come to the node), and `layouts/` (file formats). `packing`
writes shards from small files. `phalanx.train.readers` has the public names. Only `formats/` needs torch;
nothing here unpickles what it reads. Order, position, sharding over ranks and randomness are not here but
in the loader: a reader only knows sample number i.
"""
