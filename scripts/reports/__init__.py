"""What is told of the measurements: the pages and figures that the commands make from their rows."""
