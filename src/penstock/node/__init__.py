"""The server process: event loop, sockets, real files, configuration."""
