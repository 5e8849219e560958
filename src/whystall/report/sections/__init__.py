"""The tables of a report, each built from its own rows; every format draws these and no others."""
