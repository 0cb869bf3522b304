"""Other people's servers and transports: extras that the core finds by name and never imports."""
