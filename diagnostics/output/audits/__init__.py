"""What an audit found, as text: `wording` makes sentences, the others lay them out."""
