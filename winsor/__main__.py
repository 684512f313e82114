"""``python -m winsor``."""

from winsor.cli.main import main

if __name__ == "__main__":
    main()
