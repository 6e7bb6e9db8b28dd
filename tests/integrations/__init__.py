"""The integrations with other packages; tests are skipped, with the reason, where a package is missing."""
