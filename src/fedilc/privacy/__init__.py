"""What silos hide from the coordinator and from each other: keys, shared secrets, masks and secure sums.

The primitives are those of the package `cryptography`; `shamir.py` is the only arithmetic of our own.
"""
