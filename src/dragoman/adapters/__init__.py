"""Implementations of ports, named for their technology: `<technology>_<port>.py`. Nothing else imports a driver."""
