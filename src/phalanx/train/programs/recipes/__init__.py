"""The ready-made trainer: known models on images and text, with common flags and a file.

Here live its settings, compact definitions of the models, the layouts of data sets, and the loop, which
is an ordinary script on `phalanx.train`: `python -m phalanx.train.programs.recipes --help`.
"""
