"""Reports as people read them: on a terminal, as Markdown, as one HTML page."""
