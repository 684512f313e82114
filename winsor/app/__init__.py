"""The application: runs from TOML files, reports, and the command line."""
