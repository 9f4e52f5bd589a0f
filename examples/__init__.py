"""The tour: numbered scripts that teach the lectures with the code. `make tour` renders them to pages."""
