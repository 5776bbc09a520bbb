"""What a version of this package leaves on a server, and the program that records it."""
