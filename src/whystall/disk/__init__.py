"""Files of the user's machine: `reading` opens nothing but regular files, `writing` replaces nothing unasked."""
