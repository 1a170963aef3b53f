"""What commits changed in how functions are compiled: trees of git, what of them a file depends on, two reports compared, and
which commit made a difference. Standard library only: the command line and the language server share it, and neither imports
torch for it.

Whoever asks compiles: :mod:`.comparing` and :mod:`.blaming` are generators that say which checks they need and are sent reports.
"""
