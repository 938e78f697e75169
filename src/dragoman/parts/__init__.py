"""Parts of a server as data: what each contributes, and the supervisor that starts and stops them."""
