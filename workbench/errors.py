"""Mistakes that a user can mend: one line that says what, where and what to do."""


class WorkbenchError(Exception):
    """A user-facing error. The command line prints its text as one line and exits with code 2."""
