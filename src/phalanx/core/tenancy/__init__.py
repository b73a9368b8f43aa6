"""Identity: which users, service accounts and groups there are for, and what each role may do where.

`roles` has the permissions, the roles and the table between them; `principals` decides for one caller.
Every route of the API names one permission. No route asks for a role: a role is only a set of permissions.
"""
