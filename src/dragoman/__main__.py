"""`python -m dragoman`."""

from dragoman.main_path import drop_working_directory

if __name__ == "__main__":
    drop_working_directory()
    from dragoman.cli.main import main

    main()
