"""Layouts as diagrams, and diagrams as drawings: text, SVG, HTML, DOT and Mermaid."""
