"""`python -m apcore_mcp`."""

from dragoman.main_path import drop_working_directory

if __name__ == "__main__":
    drop_working_directory()
    from apcore_mcp.cli import main

    main()
