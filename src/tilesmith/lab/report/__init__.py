"""Results for people: said once as sections, shown on a terminal or as a page that needs nothing but a browser."""
