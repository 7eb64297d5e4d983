"""Text to train on: where it comes from, its tokens, and the cache of both."""
