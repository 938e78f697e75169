"""The life of one call, from the ids it is given to the record it leaves."""
