"""Read and edit libcst nodes."""
