"""Mutate the files of the seams, and insist that nothing goes wrong.

python -m tests.fuzz --count 20000
"""
