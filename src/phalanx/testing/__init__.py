"""Fakes and contract suites, one suite per seam, shipped so that every backend can run them."""
