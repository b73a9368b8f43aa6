"""The supervisor as a self-contained tree, for images without Phalanx, without Python or with another libc.

`build` makes a tree of the Python that runs it, `copy` is run by a tree to put itself into a volume that
another container mounts. `image_python` looks at the Python of the image, which ranks use. How a program
in a tree starts another one is in `phalanx.kit.interpreter`. See `docs/dev/supervisor-tree.md`.
"""
