"""A program is looked at by evaluating the statements that lead to what it compiles; see :mod:`.evaluation`."""

from .evaluation import Compiled, Evaluation, Note, described
from .inferred import inferred
from .rewriting import runs_itself

__all__ = ["Compiled", "Evaluation", "Note", "described", "inferred", "runs_itself"]
