"""What several scripts share: the models and heads they compare, their records, their pages and figures."""
