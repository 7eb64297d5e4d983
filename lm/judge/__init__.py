"""Another language model grades what a trained one writes."""
