"""Reading the rows of each batch: feeds, data loaders, workers, memory-mapped files."""
