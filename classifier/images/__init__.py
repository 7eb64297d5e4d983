"""Images of any kind behind one protocol: shapes, folders of pictures, Parquet files, tables."""
