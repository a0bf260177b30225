"""`python -m memtopo`."""

from memtopo.cli import main

if __name__ == "__main__":
    main()
