"""The command line: a file for each subcommand that reads its arguments, calls one function and prints."""
