"""Read-only HTML pages: `pages` has the routes, `markup` builds escaped HTML."""
