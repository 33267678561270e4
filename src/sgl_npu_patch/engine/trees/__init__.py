"""Read trees: folders, git revisions, archives."""
