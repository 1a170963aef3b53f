"""What a project keeps in ``.fuselens``: its kernels, and patches of libraries."""
