"""Readers of the files around a served run, one file a format; `registry` lists them."""
