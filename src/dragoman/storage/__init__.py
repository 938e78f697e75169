"""Storage, whatever its engine: the port, migrations, and the settings. The engines are in `adapters/`."""
