"""Read-only HTML pages for a browser: `pages` has the routes, `markup` builds the HTML.

A page calls the same queries as the API. Every text is escaped where `markup` builds a tag, and no page has
a script. `login` opens a session, with which nothing but reading is allowed.
"""
