"""The stages of a planning pass, each a function over the pass."""
