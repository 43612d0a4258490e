"""What every part may ask about the machine that it runs on."""

import os


def memory_bytes() -> int:
    """Memory that is built in, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
