"""Messaging: what agents and message buses share, such as when a message is sent again."""
