"""One module a measurement. Each takes a stand and gives its figures, or nothing."""
