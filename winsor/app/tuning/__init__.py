"""`winsor tune`: tuning described by a TOML file, in a directory that can be resumed."""
