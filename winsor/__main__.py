"""``python -m winsor``."""

from winsor.app.commands.main import main

if __name__ == "__main__":
    main()
