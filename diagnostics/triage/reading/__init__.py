"""From files, folders, archives and pastes to lines: what a log is wrapped in, taken off."""
