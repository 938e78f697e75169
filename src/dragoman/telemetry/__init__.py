"""What the server says about itself: its log, and how busy it is."""
