"""A report in the words and shapes that people and machines read. The only place where text is made."""
