"""A program is looked at by evaluating the statements that lead to what it compiles; see :mod:`.evaluation`."""

from .arguments import arguments
from .evaluation import Compiled, Evaluation, Note, described
from .hearing import Heard, Hearing, counts, function_of
from .inferred import fits, inferred, inferred_of_class
from .project import importers, without
from .rewriting import Leads
from .unknown import Unknown, UnknownUsed, why_of

__all__ = [
    "Compiled",
    "Evaluation",
    "Heard",
    "Hearing",
    "Leads",
    "Note",
    "Unknown",
    "UnknownUsed",
    "arguments",
    "counts",
    "described",
    "fits",
    "function_of",
    "importers",
    "inferred",
    "inferred_of_class",
    "why_of",
    "without",
]
