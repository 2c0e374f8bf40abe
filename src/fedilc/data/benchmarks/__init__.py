"""The data sets of the paper and of the examples, each as a federation."""
