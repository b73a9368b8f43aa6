"""Launchers and libraries of frameworks other than plain PyTorch: JAX, MPI, Ray, TensorFlow."""
