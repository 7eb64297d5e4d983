"""Language models with any output head, on short stories: the second experiment of the paper."""
