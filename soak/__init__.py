"""Mixed load on real servers for a long time: memory stays flat, and every accepted call has one record."""
