"""`python -m attnflow` is `attnflow`."""

from attnflow.cli.app import main

if __name__ == "__main__":
    main()
