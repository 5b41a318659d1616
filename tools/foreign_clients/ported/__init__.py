"""What stands beside suites of other projects when they are run here; copied, never imported from here."""
