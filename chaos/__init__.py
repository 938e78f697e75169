"""Kills servers with agents, at named points and at random, and checks that no message is lost or handled twice."""
