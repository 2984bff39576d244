"""Other libraries' loops and clusters. Each module imports its library, so it is imported only when it is asked for."""
