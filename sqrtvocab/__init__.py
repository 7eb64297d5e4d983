"""Output heads over huge vocabularies that never build the logits."""
