"""The procedural image set of 184,320 classes: an image is a pure function of (seed, class, instance)."""
