"""One command for each table, figure and benchmark: `python scripts/NAME.py --help`. Not in the wheel."""
