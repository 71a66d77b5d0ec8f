"""Real processes under real faults: what they did is written down, and the story is checked."""
