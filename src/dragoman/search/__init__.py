"""What search by words is made of."""
