"""Compilations foreseen: the calls that a program makes, made with the compiler; see :mod:`.foresee`."""
