"""Jobs run in an environment of their own, which has what they import: they are no tests."""

collect_ignore_glob = ["jobs/*"]
