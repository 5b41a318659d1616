"""Send what happens in a run or a thread while it happens, by both streaming protocols."""
