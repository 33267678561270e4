"""Judge many trees in one run: git revisions, published releases, folders."""
