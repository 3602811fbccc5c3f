"""Data: files and datasets to checked, tokenised, memory-mapped splits, and the plan of their batches."""
