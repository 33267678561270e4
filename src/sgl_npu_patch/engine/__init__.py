"""Find, judge and edit the seams of a tree, and write the result."""
