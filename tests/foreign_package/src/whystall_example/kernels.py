"""Kernel classes: what kernels are whose names only this project knows."""

from whystall.analysis.kernel_classes import parse_kernel_classes

CLASSES = parse_kernel_classes("""
[[rule]]
class = "communication"
family = "example"
pattern = "^exchange"
""")
