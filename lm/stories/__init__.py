"""The built-in stories: a small grammar of plots and words that needs no network."""
