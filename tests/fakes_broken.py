"""A kernel whose import fails."""

raise ImportError("libbroken.so: cannot open shared object file")
