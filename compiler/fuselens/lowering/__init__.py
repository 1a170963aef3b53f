"""From a functional ATen graph to the loop IR."""

from fuselens.lowering.builder import LoweringError
from fuselens.lowering.graph import lower

__all__ = ["LoweringError", "lower"]
