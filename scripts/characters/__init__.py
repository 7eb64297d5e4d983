"""Characters as a picture set: fonts on the machine in, Parquet that `train_classifier` reads out."""
