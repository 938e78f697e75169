"""Service levels: requests for actions counted, kept by the minute, and held against the objectives."""
