"""Published drafters: folders that others can load, check and serve."""

from workbench.publish.folder import publish
from workbench.publish.verify import verify

__all__ = ["publish", "verify"]
