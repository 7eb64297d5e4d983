"""The image experiment: a 3-layer CNN over 184,320 classes, with any head."""
