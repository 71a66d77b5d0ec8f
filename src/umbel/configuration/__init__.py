"""Owns an application's settings: from arguments, the environment, a file, then defaults.

Called by: the composition root and the command line.
Never: reads the environment at import; never imports the packages that it configures.
"""

from umbel.configuration.file import ConfigFile, read_config_file
from umbel.configuration.settings import DEFAULT_URL, Settings

__all__ = ["DEFAULT_URL", "ConfigFile", "Settings", "read_config_file"]
