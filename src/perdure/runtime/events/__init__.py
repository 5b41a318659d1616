"""Run events: published while a run is worked on, stored, and read by subscribers."""
