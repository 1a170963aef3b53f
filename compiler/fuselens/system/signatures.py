"""Signatures and annotations of functions, of which an annotation may name what is not there.

Python 3.14 evaluates annotations only when they are asked for, and raises then what they raise.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """``inspect.signature``; annotations that cannot be evaluated are ``ForwardRef``."""
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

    def annotations_of(function: Any) -> dict[str, Any]:
        """The function's annotations as they are; those that cannot be evaluated are ``ForwardRef``."""
        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)

else:
    signature = inspect.signature

    def annotations_of(function: Any) -> dict[str, Any]:
        """The function's annotations as they are."""
        return inspect.get_annotations(function)
