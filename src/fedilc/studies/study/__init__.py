"""`fedilc study`: leave one silo out in turn, train on the others, and measure at it."""
