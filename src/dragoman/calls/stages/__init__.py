"""The steps of a call, one file each. `app.py` puts them in order."""
