"""Results as people and machines read them: sections declared once, one file per format, no arithmetic, no I/O."""
