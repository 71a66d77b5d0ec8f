"""One profile for every property test: no database of examples in the checkout, blobs printed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "umbel-hypothesis")
settings.register_profile("umbel", database=None, deadline=None, print_blob=True)
settings.load_profile("umbel")
