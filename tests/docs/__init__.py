"""The pages of the site: run by `make docs`."""
