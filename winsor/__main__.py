"""``python -m winsor``."""

from winsor.cli import main

if __name__ == "__main__":
    main()
