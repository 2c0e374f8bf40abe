"""Sums without rounding: what aggregators accumulate, merge and send, the same bits in any order.

- `state`: all sums of an aggregation, and how several processes add them up
- `exact_sum`: the sum of values; `signed_logs`: counts and sums of logarithms by sign
- `fixed_point`: logarithms and powers of two as whole numbers
- `outer_products`: signs and logarithms of outer products that are never formed
- `packed`: sums as they travel from one coordinator to the next
"""
