"""The larger commands of the command line, one file each."""
