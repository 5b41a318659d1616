"""In the place of Aegra's own server, of which its tests read nothing but settings."""
