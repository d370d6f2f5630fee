"""Sources of tables: Arrow, Parquet and MDS data, with a column of tokens and perhaps one of ids."""
