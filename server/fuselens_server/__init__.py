"""The language server: shows what the compiler's worker reports, and never imports torch or user code itself."""
