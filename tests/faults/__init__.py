"""Put faults into patched trees, and insist that `verify` finds them.

python -m tests.faults
"""
