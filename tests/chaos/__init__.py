"""Real processes under real faults. Their recorded history is checked against the guarantees."""
