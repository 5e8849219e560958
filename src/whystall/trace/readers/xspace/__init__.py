"""Profiles of XLA (JAX, TensorFlow, PyTorch/XLA): ``*.xplane.pb``."""
