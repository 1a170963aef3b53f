"""A program is looked at by evaluating the statements that lead to what it compiles; see :mod:`.evaluation`."""

from .evaluation import Compiled, Evaluation, Note, described
from .inferred import inferred
from .rewriting import runs_itself
from .unknown import Unknown, why_of

__all__ = ["Compiled", "Evaluation", "Note", "Unknown", "described", "inferred", "runs_itself", "why_of"]
